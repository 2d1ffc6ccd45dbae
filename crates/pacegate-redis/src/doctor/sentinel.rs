//! Examines sentinels and their agreement about the master.

use std::collections::HashMap;

use super::{
    Finding, Part, ServerReport,
    ask::{INFO, Info, SENTINEL_MASTER},
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
    report.findings.push(Finding::good("reach", "reachable"));
    let user = access.user.as_deref().unwrap_or("default");
    match INFO.ask::<String>(&mut link, user, &[]).await.map(Info::new) {
        Ok(info) => {
            let version = Version::of(&info);
            report.name = version.map(|version| version.to_string());
            if !info.is_sentinel() {
                let advice = format!("use redis://{address}, or the addresses of the sentinels");
                report.findings.push(Finding::problem("role", "not a sentinel", advice));
                return Sentinel { report, master: None };
            }
        }
        Err(blind) => report.findings.push(blind.finding("version")),
    }
    let fields = SENTINEL_MASTER.ask::<Fields>(&mut link, user, &[name]).await;
    let master = fields.as_ref().ok().and_then(address_of);
    match fields {
        Ok(fields) => report.findings.extend(opinion(&fields, name)),
        Err(blind) => report.findings.push(blind.finding("master")),
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
    let master = match flags.contains("down") {
        false => Finding::good("master", format!("`{name}` is at {address}")),
        true => {
            let text =
                format!("`{name}` at {address} is down, according to this sentinel ({flags})");
            let advice = format!("check whether a failover is in progress: SENTINEL MASTER {name}");
            Finding::problem("master", text, advice)
        }
    };
    let mut findings = vec![master];
    if let (Some(others), Some(quorum)) = (number("num-other-sentinels"), number("quorum")) {
        findings.push(quorum_of(others + 1, quorum, name));
    }
    findings
}

fn quorum_of(sentinels: u64, quorum: u64, name: &str) -> Finding {
    let text = format!(
        "{sentinels} sentinels know each other; quorum to declare the master down: {quorum}"
    );
    if quorum > sentinels {
        let advice = format!("SENTINEL SET {name} quorum {}", sentinels / 2 + 1);
        return Finding::problem("quorum", format!("{text}, which can never be reached"), advice);
    }
    if sentinels < 3 {
        let advice = "run at least three sentinels, on machines that fail independently";
        let text = format!(
            "{text}; with fewer than three sentinels, the loss of one can prevent a failover"
        );
        return Finding::warning("quorum", text, advice);
    }
    Finding::good("quorum", text)
}

/// Checks that the sentinels agree on the master.
pub(super) fn agreement(sentinels: &[Sentinel], name: &str) -> Vec<Finding> {
    let mut named: Vec<&str> = sentinels.iter().filter_map(|it| it.master.as_deref()).collect();
    let (answers, all) = (named.len(), sentinels.len());
    named.sort_unstable();
    named.dedup();
    let seen = format!("{answers} of {all} sentinels report the master");
    let finding = match named.as_slice() {
        [] => Finding::problem(
            "master",
            format!("no sentinel knows the master `{name}`"),
            format!("list their masters with SENTINEL MASTERS; the address names `{name}`"),
        ),
        [one] if answers == all => Finding::good("master", format!("{seen}: {one}")),
        [one] => Finding::warning(
            "master",
            format!("{seen}: {one}"),
            "restart the other sentinels, or remove them from the address",
        ),
        several => Finding::warning(
            "master",
            format!("{seen} but disagree: {}", several.join(", ")),
            format!(
                "wait for the end of a failover; if it persists, run SENTINEL RESET {name} where it is wrong"
            ),
        ),
    };
    vec![finding]
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
