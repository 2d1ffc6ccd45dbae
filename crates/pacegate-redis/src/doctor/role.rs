//! Checks that the server has the role that the address expects.

use super::{Finding, Part, ask::Info, findings as table};

pub(super) fn check(info: &Info, part: Part, address: &str) -> Vec<Finding> {
    if info.is_sentinel() {
        return vec![table::SENTINEL.with(&[&address])];
    }
    let mut findings = vec![role(info)];
    findings.extend(mode(info, part, address));
    if is_usable(info, part) {
        findings.extend(replicas(info, part, address));
    }
    findings
}

/// Returns true if a store could use the server.
pub(super) fn is_usable(info: &Info, part: Part) -> bool {
    let clustered = info.number("cluster_enabled") == Some(1);
    !info.is_sentinel() && is_master(info) && clustered == (part == Part::ClusterMaster)
}

fn is_master(info: &Info) -> bool {
    info.text("role") == Some("master")
}

fn role(info: &Info) -> Finding {
    if is_master(info) {
        return table::MASTER.with(&[]);
    }
    let master = info.text("master_host").zip(info.text("master_port"));
    let (host, port) = master.unwrap_or(("HOST", "PORT"));
    table::REPLICA.with(&[&host, &port])
}

/// Checks that the cluster mode matches the address.
fn mode(info: &Info, part: Part, address: &str) -> Option<Finding> {
    let clustered = info.number("cluster_enabled")? == 1;
    let row = match (clustered, part == Part::ClusterMaster) {
        (true, true) => table::CLUSTERED,
        (false, false) => table::NOT_CLUSTERED,
        (true, false) => table::PART_OF_A_CLUSTER,
        (false, true) => table::NO_CLUSTER,
    };
    Some(row.with(&[&address]))
}

/// Maximum lag of a replica. Healthy replicas report once per second.
const LATE_SECONDS: u64 = 3;

fn replicas(info: &Info, part: Part, address: &str) -> Option<Finding> {
    let count = info.number("connected_slaves")?;
    if count == 0 {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        let row = match part {
            Part::Alone | Part::Sentinel => table::NO_REPLICAS,
            Part::ClusterMaster => table::NO_REPLICAS_IN_CLUSTER,
            Part::Master => table::NO_REPLICAS_OF_MASTER,
        };
        return Some(row.with(&[&host, &port]));
    }
    let offset = info.number("master_repl_offset").unwrap_or(0);
    let late: Vec<String> = info.rows("slave").filter_map(|row| late(row, offset)).collect();
    let many = if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") };
    let row = if late.is_empty() { table::REPLICAS } else { table::REPLICAS_LAG };
    Some(row.with(&[&many, &late.join(", ")]))
}

/// Describes a lagging replica, from its line `ip=…,port=…,state=online,offset=…,lag=…`.
fn late(row: &str, master_offset: u64) -> Option<String> {
    let field = |name: &str| {
        let mut pairs = row.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(other, _)| *other == name).map(|(_, value)| value)
    };
    let address = format!("{}:{}", field("ip")?, field("port")?);
    let state = field("state").unwrap_or("unknown");
    if state != "online" {
        return Some(format!("{address} ({state})"));
    }
    let lag: u64 = field("lag")?.parse().ok()?;
    let bytes = master_offset.saturating_sub(field("offset")?.parse().ok()?);
    (lag >= LATE_SECONDS).then(|| format!("{address} ({lag} s, {bytes} bytes)"))
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn levels(info: &str, part: Part) -> Vec<(&'static str, Level)> {
        let findings = check(&Info::new(info), part, "127.0.0.1:6379");
        findings.iter().map(|finding| (finding.subject, finding.level)).collect()
    }

    #[test]
    fn lagging_replicas_are_reported() {
        let info = "role:master\nconnected_slaves:1\nmaster_repl_offset:500\n\
                    slave0:ip=10.0.0.2,port=6379,state=online,offset=100,lag=";
        let found = |lag: &str| levels(&format!("{info}{lag}"), Part::Master)[1];
        assert_eq!(found("1"), ("replicas", Level::Good));
        assert_eq!(found("3"), ("replicas", Level::Warning));
        let copying = format!("{info}0").replace("online", "send_bulk");
        assert_eq!(levels(&copying, Part::Master)[1].1, Level::Warning);
        let text = replicas(&Info::new(format!("{info}9")), Part::Master, "").unwrap().text;
        assert!(text.contains("10.0.0.2:6379 (9 s, 400 bytes)"), "{text}");
    }

    #[test]
    fn a_missing_replica_is_reported_for_clusters_and_sentinels() {
        for (part, clustered, level) in [
            (Part::Alone, 0, Level::Good),
            (Part::Master, 0, Level::Warning),
            (Part::ClusterMaster, 1, Level::Warning),
        ] {
            let info = format!("role:master\ncluster_enabled:{clustered}\nconnected_slaves:0");
            assert_eq!(levels(&info, part)[2], ("replicas", level));
        }
    }
}
