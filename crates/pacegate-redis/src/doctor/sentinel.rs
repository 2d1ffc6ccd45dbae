//! Examines sentinels and their agreement about the master.

use std::collections::HashMap;

use super::{
    Finding, Part, ServerReport,
    ask::{INFO, Info, SENTINEL_MASTER},
    findings as table,
    reach::{open, unreachable},
    version::Version,
};
use crate::link::{Access, Address};

/// A sentinel and the master that it names.
#[derive(Debug)]
pub(super) struct Sentinel {
    pub(super) report: ServerReport,
    pub(super) master: Option<String>,
}

type Fields = HashMap<String, String>;

pub(super) async fn look(address: &Address, access: &Access, name: &str) -> Sentinel {
    let mut report = ServerReport::new(address, Part::Sentinel);
    let mut link = match open(address, access).await {
        Ok(link) => link,
        Err(error) => {
            report.findings.push(unreachable(address, &error));
            return Sentinel { report, master: None };
        }
    };
    report.is_reached = true;
    report.findings.push(table::REACHABLE.with(&[]));
    let user = access.user.as_deref().unwrap_or("default");
    match INFO.ask::<String>(&mut link, user, &[]).await.map(Info::new) {
        Ok(info) => {
            let version = Version::of(&info);
            report.name = version.map(|version| version.to_string());
            if !info.is_sentinel() {
                report.findings.push(table::NOT_A_SENTINEL.with(&[address]));
                return Sentinel { report, master: None };
            }
        }
        Err(failed) => report.findings.push(failed.finding("version")),
    }
    let fields = SENTINEL_MASTER.ask::<Fields>(&mut link, user, &[name]).await;
    let master = fields.as_ref().ok().and_then(address_of);
    match fields {
        Ok(fields) => report.findings.extend(opinion(&fields, name)),
        Err(failed) => report.findings.push(failed.finding("master")),
    }
    Sentinel { report, master }
}

fn address_of(fields: &Fields) -> Option<String> {
    let port = fields.get("port")?.parse().ok()?;
    Some(Address::Tcp(fields.get("ip")?.clone(), port).to_string())
}

/// Reports a sentinel's view of the master and of the other sentinels.
fn opinion(fields: &Fields, name: &str) -> Vec<Finding> {
    let flags = fields.get("flags").map_or("", String::as_str);
    let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok());
    let address = address_of(fields).unwrap_or_default();
    let row = if flags.contains("down") { table::MASTER_DOWN } else { table::MASTER_AT };
    let mut findings = vec![row.with(&[&name, &address, &flags])];
    if let (Some(others), Some(quorum)) = (number("num-other-sentinels"), number("quorum")) {
        findings.push(quorum_of(others + 1, quorum, name));
    }
    findings
}

fn quorum_of(sentinels: u64, quorum: u64, name: &str) -> Finding {
    let row = match (quorum > sentinels, sentinels < 3) {
        (true, _) => table::QUORUM_UNREACHABLE,
        (false, true) => table::FEW_SENTINELS,
        (false, false) => table::QUORUM,
    };
    row.with(&[&sentinels, &quorum, &name, &(sentinels / 2 + 1)])
}

/// Checks that the sentinels agree on the master.
pub(super) fn agreement(sentinels: &[Sentinel], name: &str) -> Finding {
    let mut named: Vec<&str> = sentinels.iter().filter_map(|it| it.master.as_deref()).collect();
    let (answers, all) = (named.len(), sentinels.len());
    named.sort_unstable();
    named.dedup();
    let row = match named.as_slice() {
        [] => table::MASTER_UNKNOWN,
        [_] if answers == all => table::MASTER_AGREED,
        [_] => table::MASTER_OF_SOME,
        _ => table::MASTER_DISPUTED,
    };
    row.with(&[&name, &answers, &all, &named.join(", ")])
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn three_sentinels_are_enough_if_the_quorum_can_be_reached() {
        assert_eq!(quorum_of(3, 2, "m").level, Level::Good);
        assert_eq!(quorum_of(2, 2, "m").level, Level::Warning);
        assert_eq!(quorum_of(3, 4, "m").level, Level::Problem);
    }
}
