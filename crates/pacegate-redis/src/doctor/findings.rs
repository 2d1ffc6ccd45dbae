//! The table of findings: level, subject, observation and advice. `{0}`, `{1}` and so on are arguments.

use std::fmt::Display;

use super::{Finding, Level};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    level: Level,
    subject: &'static str,
    text: &'static str,
    /// Empty for [`Level::Good`].
    advice: &'static str,
}

impl Row {
    /// Returns the finding with these arguments.
    pub(super) fn with(self, args: &[&dyn Display]) -> Finding {
        let fill = |text: &str| {
            let fill_one = |text: String, (place, arg): (usize, &&dyn Display)| {
                text.replace(&format!("{{{place}}}"), &arg.to_string())
            };
            args.iter().enumerate().fold(text.to_owned(), fill_one)
        };
        let advice = (self.level > Level::Good).then(|| fill(self.advice));
        Finding { level: self.level, subject: self.subject, text: fill(self.text), advice }
    }
}

macro_rules! findings {
    ($($name:ident: $level:ident $subject:literal $text:literal $(=> $advice:literal)?;)*) => {
        $(pub(super) const $name: Row = Row {
            level: Level::$level, subject: $subject, text: $text, advice: concat!($($advice)?),
        };)*
    };
}

findings! {
    REACHABLE: Good "reach" "reachable";
    UNREACHABLE: Problem "reach" "cannot connect to {0}: {1}" => "{2}";
    NOT_CHECKED: Notice "" "not checked: {0}" => "{1}";

    VERSION: Good "version" "{0}";
    VERSION_UNSUPPORTED: Problem "version" "{0} is not supported" => "install {1} {2}.{3} or newer";
    VERSION_VULNERABLE: Warning "version" "{0} has vulnerabilities in the script engine: {1}"
        => "install {2} {3} or newer; or check whether your distribution has backported the fixes";
    VERSION_DOUBTFUL: Warning "version"
        "{0} may have vulnerabilities in the script engine: {1}; no fixed version of the series {4} is known"
        => "install {2} {3} or newer; or check whether your distribution has backported the fixes";

    MASTER: Good "role" "master";
    REPLICA: Problem "role" "replica of {0}:{1}, which rejects writes"
        => "use the master's address, redis://{0}:{1}, or sentinels: redis+sentinel://HOST/NAME";
    SENTINEL: Problem "role" "sentinel, which stores no counters"
        => "use redis+sentinel://{0}/NAME, with the name of the master";
    NOT_A_SENTINEL: Problem "role" "not a sentinel" => "use redis://{0}, or the addresses of the sentinels";

    CLUSTERED: Good "cluster" "cluster mode, as the address says";
    NOT_CLUSTERED: Good "cluster" "no cluster mode, as the address says";
    PART_OF_A_CLUSTER: Problem "cluster" "part of a cluster, so it stores only some of the keys"
        => "use redis+cluster://{0}";
    NO_CLUSTER: Problem "cluster" "not part of a cluster"
        => "use redis://{0}, or set `cluster-enabled yes` in the server's config file";
    NO_SLOT_MAP: Problem "cluster" "no server knows the slot assignment"
        => "check CLUSTER INFO and CLUSTER SLOTS there; `redis-cli --cluster create` assigns slots";
    ALL_SLOTS: Good "slots" "all {0} slots have a master";
    SLOTS_WITHOUT_MASTER: Problem "slots" "{1} of {0} slots have no master, so their keys cannot be counted"
        => "restart the missing masters, or run `redis-cli --cluster fix HOST:PORT`";

    NO_REPLICAS: Good "replicas" "none, as expected for a single server";
    NO_REPLICAS_IN_CLUSTER: Warning "replicas"
        "none: if this master fails, its keys or the whole cluster become unavailable"
        => "redis-cli --cluster add-node NEW:PORT {0}:{1} --cluster-slave";
    NO_REPLICAS_OF_MASTER: Warning "replicas" "none: no server can take over if the master fails"
        => "start another server and run there: REPLICAOF {0} {1}";
    REPLICAS: Good "replicas" "{0}, up to date";
    REPLICAS_LAG: Warning "replicas" "{0}, of which lagging: {1}; a failover now would lose these writes"
        => "check their logs and the network; INFO replication shows `offset` and `lag`";

    NO_EVICTION: Good "eviction" "live keys are never evicted (noeviction)";
    EVICTION: Problem "eviction" "`{0}`: {1}, so a flood of keys resets the counters of other clients"
        => "CONFIG SET maxmemory-policy noeviction, and set it in the config file too; keep data that needs eviction \
            on another server";
    // Without a memory limit, nothing is evicted yet.
    EVICTION_LATER: Warning "eviction" "`{0}`: {1}, so a flood of keys resets the counters of other clients"
        => "CONFIG SET maxmemory-policy noeviction, and set it in the config file too; keep data that needs eviction \
            on another server";
    EVICTED: Problem "evicted"
        "{0} keys were evicted since the server started, possibly including counters"
        => "CONFIG SET maxmemory-policy noeviction, and set it in the config file too; keep data that needs eviction \
            on another server";
    EVICTED_BEFORE: Warning "evicted"
        "{0} keys were evicted since the server started, possibly including counters"
        => "none if the policy has been changed since then; CONFIG RESETSTAT resets the number";

    MEMORY_UNKNOWN: Notice "memory" "the server does not report its memory usage" => "run INFO memory";
    MEMORY_UNLIMITED: Warning "memory"
        "{0} used, without a limit: a flood of keys can use up the machine's memory"
        => "CONFIG SET maxmemory 1gb, and set it in the config file too; a million keys take 160 to 176 MB";
    MEMORY: Good "memory" "{0} of {1} used";
    MEMORY_NEARLY_FULL: Warning "memory"
        "{0} of {1} used; once it is full, new keys are rejected and failure modes apply to them"
        => "CONFIG SET maxmemory {2}mb, and set it in the config file too";

    AOF_ALWAYS: Notice "persistence"
        "every write waits for the disk (appendfsync always), which slows down all decisions"
        => "CONFIG SET appendfsync everysec, which loses at most one second of counting (one burst per key)";
    AOF_NO: Notice "persistence" "the append-only file is flushed whenever the system decides (appendfsync no)"
        => "CONFIG SET appendfsync everysec";
    AOF: Good "persistence" "the append-only file is flushed every second";
    SNAPSHOTS: Notice "persistence"
        "snapshots only: a restart loses the counts since the last one, at most one burst per key"
        => "CONFIG SET appendonly yes and CONFIG SET appendfsync everysec, and set them in the config file too";
    NO_PERSISTENCE: Notice "persistence" "none: a restart resets all counters, at most one burst per key"
        => "CONFIG SET appendonly yes and CONFIG SET appendfsync everysec, and set them in the config file too";
    STOPS_WRITES: Notice "disk"
        "if a snapshot fails (full disk), the server rejects all writes (MISCONF) and failure modes apply"
        => "CONFIG SET stop-writes-on-bgsave-error no, unless other data on the server needs it; monitor the disk";
    DISK_FAILURE: Problem "disk" "{1} ({0}): the server may reject writes and lose data on a restart"
        => "free disk space and check the server's log; then {2} and check again";

    NO_PING: Notice "latency" "not checked: no response to PING" => "permit PING: ACL SETUSER NAME +ping";
    LATENCY: Good "latency" "{0}; the deadline is {1}";
    LATENCY_HIGH: Warning "latency"
        "{0}; above a third of the deadline of {1}, so short load peaks can exceed it"
        => "move the server closer, check for slow commands (SLOWLOG GET 10), or raise the deadline to {2}";
    LATENCY_TOO_HIGH: Problem "latency" "{0}; most exceed the deadline of {1}, so failure modes apply"
        => "move the server closer, check for slow commands (SLOWLOG GET 10), or raise the deadline to {2}";

    CLOCK_SAME: Good "clock" "same time as this machine, within the precision of the measurement";
    CLOCK_CLOSE: Good "clock" "{0} {1} this machine's";
    CLOCK_FAR: Warning "clock" "{0} {1} this machine's; decisions and windows use the server's clock"
        => "synchronise both clocks with NTP; run `timedatectl` on each to find the wrong one";

    TLS: Good "tls" "encrypted, with a verified certificate";
    NO_TLS: Notice "tls" "not encrypted: passwords and key names are readable on the network"
        => "set `tls-port` in the server's config file, and use rediss://{0}, with ?ca=FILE for a private CA";
    PASSWORD: Good "password" "required";
    NO_PASSWORD: Warning "password"
        "the user `default` has no password: anyone who can reach the port can change all counters"
        => "create a user for Pacegate (see rights), then run ACL SETUSER default off, and keep both in the server's \
            config file";

    RIGHTS_UNKNOWN: Good "rights" "user `{0}`; permissions cannot be checked before Redis 7";
    RIGHTS: Good "rights" "`{0}` has exactly the permissions that it needs";
    RIGHTS_MISSING: Problem "rights" "`{0}` lacks permissions for keys with the prefix `{1}`: {2}"
        => "ACL SETUSER {0} ~{1}* {2}";
    RIGHTS_NEEDLESS: Notice "rights" "`{0}` has more permissions than needed: {1}" => "{2}";

    MASTER_AT: Good "master" "`{0}` is at {1}";
    MASTER_DOWN: Problem "master" "`{0}` at {1} is down, according to this sentinel ({2})"
        => "check whether a failover is in progress: SENTINEL MASTER {0}";
    MASTER_UNKNOWN: Problem "master" "no sentinel knows the master `{0}`"
        => "list their masters with SENTINEL MASTERS; the address names `{0}`";
    MASTER_AGREED: Good "master" "{1} of {2} sentinels report the master: {3}";
    MASTER_OF_SOME: Warning "master" "{1} of {2} sentinels report the master: {3}"
        => "restart the other sentinels, or remove them from the address";
    MASTER_DISPUTED: Warning "master" "{1} of {2} sentinels report the master but disagree: {3}"
        => "wait for the end of a failover; if it persists, run SENTINEL RESET {0} where it is wrong";
    QUORUM: Good "quorum" "{0} sentinels know each other; quorum to declare the master down: {1}";
    QUORUM_UNREACHABLE: Problem "quorum"
        "{0} sentinels know each other; quorum to declare the master down: {1}, which can never be reached"
        => "SENTINEL SET {2} quorum {3}";
    FEW_SENTINELS: Warning "quorum"
        "{0} sentinels know each other; quorum to declare the master down: {1}; with fewer than three sentinels, the \
         loss of one can prevent a failover"
        => "run at least three sentinels, on machines that fail independently";

    SCRIPTS: Good "script"
        "every script type works: a limit of 1 admitted one request, denied the next, and was reset";
    SCRIPTS_FAIL: Problem "script" "the scripts do not work on this server: {0}"
        => "fix the findings above, especially rights and role; then run the doctor again";
    SCRIPTS_NOT_TRIED: Notice "script" "not checked: a store cannot use this server in its current state"
        => "fix the findings above, then run the doctor again";
}
