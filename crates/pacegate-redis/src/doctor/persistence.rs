//! Checks persistence: which counters a restart loses.

use std::collections::HashMap;

use super::{
    Finding,
    ask::{CONFIG_GET, Checked, Info},
    findings as table,
};
use crate::link::Link;

/// DiskSettings that INFO does not include.
#[derive(Clone, Debug)]
pub(super) struct DiskSettings {
    pub(super) saves: bool,
    pub(super) fsync: String,
    pub(super) stops_writes: bool,
}

/// Fields of INFO that report failures, with a description and the command to try again.
const FAILURES: [(&str, &str, &str); 3] = [
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

impl DiskSettings {
    pub(super) async fn look(link: &mut Link, user: &str) -> Checked<Self> {
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

pub(super) fn check(info: &Info, settings: &Checked<DiskSettings>) -> Vec<Finding> {
    let failed = |(field, ..): &&(&str, &str, &str)| info.text(field).is_some_and(|it| it != "ok");
    let failures = FAILURES.iter().filter(failed);
    let mut findings: Vec<_> = failures
        .map(|(field, text, then)| table::DISK_FAILURE.with(&[field, text, then]))
        .collect();
    let appends = info.number("aof_enabled") == Some(1);
    match settings {
        Ok(settings) => {
            findings.push(kept(appends, settings));
            if settings.saves && settings.stops_writes {
                findings.push(table::STOPS_WRITES.with(&[]));
            }
        }
        Err(failed) => findings.push(failed.finding("persistence")),
    }
    findings
}

fn kept(appends: bool, settings: &DiskSettings) -> Finding {
    let row = match (appends, &*settings.fsync, settings.saves) {
        (true, "always", _) => table::AOF_ALWAYS,
        (true, "no", _) => table::AOF_NO,
        (true, ..) => table::AOF,
        (false, _, true) => table::SNAPSHOTS,
        (false, _, false) => table::NO_PERSISTENCE,
    };
    row.with(&[])
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn settings(saves: bool, fsync: &str) -> Checked<DiskSettings> {
        Ok(DiskSettings { saves, fsync: fsync.to_owned(), stops_writes: true })
    }

    fn levels(info: &str, settings: &Checked<DiskSettings>) -> Vec<(&'static str, Level)> {
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
