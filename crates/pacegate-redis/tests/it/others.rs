//! Reimplementations of other limiters, from their descriptions.
//!
//! Instead of the clock of their machine they use that of the server, which is on the same machine here.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use pacegate::{Algorithm, Limit};
use pacegate_redis::Layout;
use pacegate_testkit::{
    servers::{Client, Cluster, Reply, Server},
    slot_of,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Other {
    Rlaas,
    RlaasLog,
    Spring,
    ValkeyApi,
    UnixTime,
    UnixTimeLog,
    TypeScript,
    /// The sliding-window class of its repository.
    TypeScriptSliding,
}

/// A key, the requests allowed in a window, and the seconds of the window.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) key: String,
    pub(crate) amount: u64,
    pub(crate) seconds: u64,
}

impl Other {
    pub(crate) const ALL: [Self; 8] = [
        Self::Rlaas,
        Self::RlaasLog,
        Self::Spring,
        Self::ValkeyApi,
        Self::UnixTime,
        Self::UnixTimeLog,
        Self::TypeScript,
        Self::TypeScriptSliding,
    ];

    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Rlaas => Layout::rlaas(),
            Self::RlaasLog => Layout::rlaas_log(),
            Self::Spring => Layout::spring(Layout::SPRING_PREFIX),
            Self::ValkeyApi => Layout::valkey_api(),
            Self::UnixTime => Layout::unix_time(),
            Self::UnixTimeLog => Layout::unix_time_log(),
            Self::TypeScript => Layout::typescript(),
            Self::TypeScriptSliding => Layout::typescript_sliding(),
        }
    }

    /// Returns its algorithm.
    pub(crate) fn algorithm(self) -> Algorithm {
        match self {
            Self::RlaasLog | Self::UnixTimeLog => Algorithm::SlidingLog,
            Self::TypeScriptSliding => Algorithm::SlidingWindow,
            _ => Algorithm::FixedWindow,
        }
    }

    /// Returns whether each window counts separately.
    pub(crate) fn is_fixed(self) -> bool {
        self.algorithm() == Algorithm::FixedWindow
    }

    /// Returns the microseconds of a tick of its scores, if it keeps a log.
    pub(crate) fn tick(self) -> Option<u64> {
        match self {
            Self::RlaasLog => Some(1_000),
            Self::UnixTimeLog => Some(1_000_000),
            _ => None,
        }
    }

    pub(crate) fn is_log(self) -> bool {
        self.tick().is_some()
    }

    pub(crate) fn limit(self, budget: &Budget) -> Limit {
        let period = std::time::Duration::from_secs(budget.seconds);
        Limit::new(budget.amount, period).unwrap().with_algorithm(self.algorithm()).unwrap()
    }

    /// Returns the key name at a time.
    pub(crate) fn name(self, budget: &Budget, micros: u64) -> String {
        let Budget { key, seconds, .. } = budget;
        let window = micros / 1_000_000 / seconds;
        match self {
            Self::Rlaas => format!("rlaas:rate_limit:{key}:{window}"),
            Self::RlaasLog => format!("rlaas:rate_limit:{key}"),
            Self::Spring => {
                let millis = micros / 1_000;
                format!("ratelimiter:{key}:{}", millis - millis % (seconds * 1_000))
            }
            Self::ValkeyApi => format!("rate_limit:{key}:{window}"),
            Self::UnixTime => format!("rl:{key}:{window}"),
            Self::UnixTimeLog => format!("sw:{key}"),
            Self::TypeScript | Self::TypeScriptSliding => format!("{window}:{key}"),
        }
    }

    /// Returns its key pattern for an ACL rule.
    pub(crate) fn keys(self) -> &'static str {
        match self {
            Self::Rlaas | Self::RlaasLog => "~rlaas:rate_limit:*",
            Self::Spring => "~ratelimiter:*",
            Self::ValkeyApi => "~rate_limit:*",
            Self::UnixTime => "~rl:*",
            Self::UnixTimeLog => "~sw:*",
            Self::TypeScript | Self::TypeScriptSliding => "~[0-9]*:*",
        }
    }

    /// Returns the lifetime of a key in seconds.
    pub(crate) fn life(self, seconds: u64) -> u64 {
        match self {
            Self::Rlaas | Self::TypeScript => seconds,
            Self::Spring | Self::UnixTime => seconds + 1,
            Self::ValkeyApi => seconds + 10,
            Self::RlaasLog | Self::UnixTimeLog => 2 * seconds,
            Self::TypeScriptSliding => 2 * seconds + 1,
        }
    }

    /// Returns whether an admitted request restarts the lifetime.
    pub(crate) fn refreshes(self) -> bool {
        matches!(self, Self::ValkeyApi | Self::RlaasLog | Self::UnixTimeLog)
    }

    /// Returns whether a denied request does too.
    pub(crate) fn refreshes_denied(self) -> bool {
        matches!(self, Self::ValkeyApi | Self::RlaasLog)
    }

    /// Charges one request; returns whether it was admitted.
    pub(crate) fn check(self, client: &mut Client, budget: &Budget) -> bool {
        let now = micros(client);
        let (name, life) = (self.name(budget, now), self.life(budget.seconds).to_string());
        let admitted = |count: i64| count <= budget.amount as i64;
        match self {
            Self::Rlaas => {
                let (seconds, base) = (budget.seconds.to_string(), &budget.key);
                let base = format!("rlaas:rate_limit:{base}");
                let count = must(client, &["EVAL", RLAAS, "1", &base, &seconds]);
                admitted(count.int())
            }
            Self::Spring | Self::UnixTime => {
                let count = must(client, &["INCR", &name]).int();
                if count == 1 {
                    must(client, &["EXPIRE", &name, &life]);
                }
                admitted(count)
            }
            Self::ValkeyApi => {
                let count = must(client, &["INCR", &name]).int();
                must(client, &["EXPIRE", &name, &life]);
                admitted(count)
            }
            Self::TypeScript => {
                must(client, &["MULTI"]);
                must(client, &["INCR", &name]);
                must(client, &["EXPIRE", &name, &life, "NX"]);
                admitted(must(client, &["EXEC"]).items()[0].int())
            }
            Self::TypeScriptSliding => sliding_total(client, budget, now) <= budget.amount,
            Self::RlaasLog => {
                let key = format!("rlaas:rate_limit:{}", budget.key);
                let [now, width, amount] =
                    [now / 1_000, budget.seconds * 1_000, budget.amount].map(|n| n.to_string());
                // A random fraction in the original; here a unique number.
                let member = format!("{now}-0.{}", serial());
                let words = ["EVAL", RLAAS_LOG, "1", &key, &now, &width, &amount, &member];
                must(client, &words).items()[0].int() == 1
            }
            Self::UnixTimeLog => log(client, &name, budget, now / 1_000_000, &life),
        }
    }
}

/// Servers as the other limiter and the test see them.
pub(crate) enum Servers<'a> {
    One(Client),
    /// With a cache of the server of each slot.
    Cluster(&'a Cluster, Vec<Client>, BTreeMap<u16, usize>),
}

impl<'a> Servers<'a> {
    pub(crate) fn one(server: &Server) -> Self {
        Self::One(server.connect().unwrap())
    }

    pub(crate) fn cluster(cluster: &'a Cluster) -> Self {
        let clients = cluster.nodes().iter().map(|node| node.connect().unwrap()).collect();
        Self::Cluster(cluster, clients, BTreeMap::new())
    }

    /// Returns a connection to the server of a key.
    pub(crate) fn of(&mut self, name: &str) -> &mut Client {
        match self {
            Self::One(client) => client,
            Self::Cluster(cluster, clients, places) => {
                let slot = slot_of(name.as_bytes());
                &mut clients[*places.entry(slot).or_insert_with(|| cluster.owner(slot))]
            }
        }
    }

    pub(crate) fn micros(&mut self) -> u64 {
        micros(self.of(""))
    }

    pub(crate) fn check(&mut self, other: Other, budget: &Budget) -> bool {
        let name = other.name(budget, self.micros());
        other.check(self.of(&name), budget)
    }
}

/// Finds the window by the server's clock, counts, and lets the first request set the expiry, in one call.
const RLAAS: &str = "
    local bucket = math.floor(redis.call('TIME')[1] / ARGV[1])
    local name = KEYS[1] .. ':' .. bucket
    local count = redis.call('INCR', name)
    if count == 1 then redis.call('EXPIRE', name, ARGV[1]) end
    return count";

/// Removes expired entries, counts the rest, adds the request if it fits and always sets the expiry, in one call with
/// the caller's milliseconds.
const RLAAS_LOG: &str = "
    local now, width, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - width)
    local count = redis.call('ZCARD', KEYS[1])
    if count < amount then redis.call('ZADD', KEYS[1], now, ARGV[4]) end
    redis.call('PEXPIRE', KEYS[1], width * 2)
    return {count < amount and 1 or 0, count, width / 1000}";

/// The sliding-window class for one request: the current window and a part of the previous one.
/// Its weight is in milliseconds modulo seconds.
#[expect(clippy::float_arithmetic, reason = "as in the original")]
pub(crate) fn sliding_total(client: &mut Client, budget: &Budget, micros: u64) -> u64 {
    let Budget { key, seconds, .. } = budget;
    let window = micros / 1_000_000 / seconds;
    let [previous, current] = [window - 1, window].map(|window| format!("{window}:{key}"));
    must(client, &["MULTI"]);
    must(client, &["GET", &previous]);
    must(client, &["INCR", &current]);
    must(client, &["EXPIRE", &current, &(2 * seconds + 1).to_string(), "NX"]);
    let replies = must(client, &["EXEC"]);
    let before = match &replies.items()[0] {
        Reply::Nil => 0,
        count => count.int(),
    };
    let weight = (micros / 1_000 % seconds) as f64 / *seconds as f64;
    (before as f64 * (1.0 - weight)).floor() as u64 + replies.items()[1].int() as u64
}

fn serial() -> u64 {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// Removes expired entries, counts the rest, and adds the request if there is room.
fn log(client: &mut Client, name: &str, budget: &Budget, now: u64, life: &str) -> bool {
    let (past, now) = ((now - budget.seconds).to_string(), now.to_string());
    must(client, &["ZREMRANGEBYSCORE", name, "0", &past]);
    if must(client, &["ZCARD", name]).int() >= budget.amount as i64 {
        return false;
    }
    // A random identifier in the original; here a unique number.
    let member = format!("theirs-{}", serial());
    must(client, &["ZADD", name, &now, &member]);
    must(client, &["EXPIRE", name, life]);
    true
}

/// Returns the server's time.
pub(crate) fn micros(client: &mut Client) -> u64 {
    let time = must(client, &["TIME"]);
    let [seconds, micros] = [0, 1].map(|place| time.items()[place].int() as u64);
    seconds * 1_000_000 + micros
}

/// Returns the reply to a command that must succeed.
pub(crate) fn must(client: &mut Client, words: &[&str]) -> Reply {
    let reply = client.command(words).unwrap();
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
    reply
}
