//! Whether it is the server that the address promises.

use super::{Finding, Part, ask::Info};

pub(super) fn check(info: &Info, part: Part, address: &str) -> Vec<Finding> {
    if info.is_sentinel() {
        let advice = format!("write redis+sentinel://{address}/NAME, with the name of the master");
        return vec![Finding::problem("role", "it is a sentinel and keeps no budgets", advice)];
    }
    let mut findings = vec![role(info)];
    findings.extend(mode(info, part, address));
    if is_usable(info, part) {
        findings.extend(replicas(info, part, address));
    }
    findings
}

/// Whether a store could work with it.
pub(super) fn is_usable(info: &Info, part: Part) -> bool {
    let clustered = info.number("cluster_enabled") == Some(1);
    !info.is_sentinel() && is_master(info) && clustered == (part == Part::ClusterMaster)
}

fn is_master(info: &Info) -> bool {
    info.text("role") == Some("master")
}

fn role(info: &Info) -> Finding {
    if is_master(info) {
        return Finding::good("role", "it is a master and takes writes");
    }
    let master = info.text("master_host").zip(info.text("master_port"));
    let (host, port) = master.unwrap_or(("HOST", "PORT"));
    let text = format!("it is a replica of {host}:{port}, which refuses to count");
    let advice = format!(
        "write the master's address, redis://{host}:{port}, or let sentinels find it: redis+sentinel://HOST/NAME"
    );
    Finding::problem("role", text, advice)
}

/// Whether it is part of a cluster, and should be.
fn mode(info: &Info, part: Part, address: &str) -> Option<Finding> {
    let clustered = info.number("cluster_enabled")? == 1;
    Some(match (clustered, part == Part::ClusterMaster) {
        (true, true) => Finding::good("cluster", "it is part of a cluster, as the address says"),
        (false, false) => Finding::good("cluster", "it is part of no cluster, as the address says"),
        (true, false) => Finding::problem(
            "cluster",
            "it is part of a cluster, and has only some of the keys",
            format!("write redis+cluster://{address}"),
        ),
        (false, true) => Finding::problem(
            "cluster",
            "it is part of no cluster",
            format!("write redis://{address}, or set `cluster-enabled yes` in the server's file"),
        ),
    })
}

/// A replica's last word may be a second old even when all is well.
const LATE_SECONDS: u64 = 3;

fn replicas(info: &Info, part: Part, address: &str) -> Option<Finding> {
    const SUBJECT: &str = "replicas";
    let count = info.number("connected_slaves")?;
    if count == 0 {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        return Some(match part {
            Part::Alone | Part::Sentinel => Finding::good(SUBJECT, "none, and none is expected"),
            Part::ClusterMaster => Finding::warning(
                SUBJECT,
                "none: while it is away its keys are, or the whole cluster",
                format!("redis-cli --cluster add-node NEW:PORT {address} --cluster-slave"),
            ),
            Part::Master => Finding::warning(
                SUBJECT,
                "none: there is nobody who could take over",
                format!("start another server and say there: REPLICAOF {host} {port}"),
            ),
        });
    }
    let offset = info.number("master_repl_offset").unwrap_or(0);
    let late: Vec<String> = info.rows("slave").filter_map(|row| late(row, offset)).collect();
    let many = if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") };
    if late.is_empty() {
        return Some(Finding::good(SUBJECT, format!("{many}, up to date")));
    }
    let text =
        format!("{many}, of which behind: {}; a failover now would forget that", late.join(", "));
    let advice =
        "look at their log and at the network between; INFO replication shows `offset` and `lag`";
    Some(Finding::warning(SUBJECT, text, advice))
}

/// What is wrong with a replica, by its line `ip=…,port=…,state=online,offset=…,lag=…`.
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
    fn replicas_that_fall_behind_are_told() {
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
    fn whoever_needs_a_replica_is_told_that_there_is_none() {
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
