//! Checks persistence: which counters a restart loses.

use std::collections::HashMap;

use super::{
    Finding,
    ask::{CONFIG_GET, Info, Seen},
};
use crate::link::Link;

/// Settings that INFO does not include.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) saves: bool,
    pub(super) fsync: String,
    pub(super) stops_writes: bool,
}

const AOF: &str = "CONFIG SET appendonly yes and CONFIG SET appendfsync everysec, and set them in the config file too";

impl Settings {
    pub(super) async fn look(link: &mut Link, user: &str) -> Seen<Self> {
        // One by one, because CONFIG GET with several names needs Redis 7.
        let mut settings: HashMap<String, String> = HashMap::new();
        for name in ["save", "appendfsync", "stop-writes-on-bgsave-error"] {
            let answer: HashMap<String, String> = CONFIG_GET.ask(link, user, &[name]).await?;
            settings.extend(answer);
        }
        let mut take = |name: &str| settings.remove(name).unwrap_or_default();
        Ok(Self {
            saves: !take("save").is_empty(),
            fsync: take("appendfsync"),
            stops_writes: take("stop-writes-on-bgsave-error") == "yes",
        })
    }
}

pub(super) fn check(info: &Info, settings: &Seen<Settings>) -> Vec<Finding> {
    let mut findings = failures(info);
    let appends = info.number("aof_enabled") == Some(1);
    match settings {
        Ok(settings) => {
            findings.push(kept(appends, settings));
            if settings.saves && settings.stops_writes {
                findings.push(stops());
            }
        }
        Err(blind) => findings.push(blind.finding("persistence")),
    }
    findings
}

fn kept(appends: bool, settings: &Settings) -> Finding {
    const SUBJECT: &str = "persistence";
    match (appends, &*settings.fsync, settings.saves) {
        (true, "always", _) => Finding::notice(
            SUBJECT,
            "every write waits for the disk (appendfsync always), which slows down all decisions",
            "CONFIG SET appendfsync everysec, which loses at most one second of counting (one burst per key)",
        ),
        (true, "no", _) => Finding::notice(
            SUBJECT,
            "the append-only file is flushed whenever the system decides (appendfsync no)",
            "CONFIG SET appendfsync everysec",
        ),
        (true, ..) => Finding::good(SUBJECT, "the append-only file is flushed every second"),
        (false, _, true) => Finding::notice(
            SUBJECT,
            "snapshots only: a restart loses the counts since the last one, at most one burst per key",
            AOF,
        ),
        (false, _, false) => Finding::notice(
            SUBJECT,
            "none: a restart resets all counters, at most one burst per key",
            AOF,
        ),
    }
}

fn stops() -> Finding {
    Finding::notice(
        "disk",
        "if a snapshot fails (full disk), the server rejects all writes (MISCONF) and failure modes apply",
        "CONFIG SET stop-writes-on-bgsave-error no, unless other data on the server needs it; monitor the disk",
    )
}

/// Reports failed snapshots and failed writes to the append-only file.
fn failures(info: &Info) -> Vec<Finding> {
    let looked = [
        ("rdb_last_bgsave_status", "the last snapshot failed", "run BGSAVE"),
        (
            "aof_last_bgrewrite_status",
            "the last rewrite of the append-only file failed",
            "run BGREWRITEAOF",
        ),
        (
            "aof_last_write_status",
            "the last write to the append-only file failed",
            "run INFO persistence",
        ),
    ];
    let failed =
        looked.into_iter().filter(|(name, ..)| info.text(name).is_some_and(|it| it != "ok"));
    failed
        .map(|(name, what, then)| {
            let text =
                format!("{what} ({name}): the server may reject writes and lose data on a restart");
            let advice =
                format!("free disk space and check the server's log; then {then} and check again");
            Finding::problem("disk", text, advice)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn settings(saves: bool, fsync: &str) -> Seen<Settings> {
        Ok(Settings { saves, fsync: fsync.to_owned(), stops_writes: true })
    }

    fn levels(info: &str, settings: &Seen<Settings>) -> Vec<(&'static str, Level)> {
        let findings = check(&Info::new(info), settings);
        findings.iter().map(|finding| (finding.subject, finding.level)).collect()
    }

    #[test]
    fn an_append_only_file_flushed_every_second_is_good() {
        let good = [("persistence", Level::Good)];
        let notice = [("persistence", Level::Notice)];
        assert_eq!(levels("aof_enabled:1", &settings(false, "everysec")), good);
        assert_eq!(levels("aof_enabled:1", &settings(false, "always")), notice);
        assert_eq!(levels("aof_enabled:1", &settings(false, "no")), notice);
        assert_eq!(levels("aof_enabled:0", &settings(false, "everysec")), notice);
        let snapshots = levels("aof_enabled:0", &settings(true, "everysec"));
        assert_eq!(snapshots, [notice[0], ("disk", Level::Notice)]);
    }

    #[test]
    fn a_failed_snapshot_or_append_only_file_is_a_problem() {
        for field in
            ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"]
        {
            let info = format!("aof_enabled:1\n{field}:err");
            let found = levels(&info, &settings(false, "everysec"));
            assert_eq!(found[0], ("disk", Level::Problem), "{field}");
            let fine = levels(&info.replace("err", "ok"), &settings(false, "everysec"));
            assert_eq!(fine.len(), 1, "{field}");
        }
    }
}
