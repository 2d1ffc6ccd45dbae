//! Checks the permissions of the user: missing and unnecessary ones.

use redis::{Pipeline, Value};

use super::{
    Finding, Part,
    ask::{ACL_DRYRUN, ACL_WHOAMI, Checked},
    findings as table,
};
use crate::{acl::acl_line, link::Link};

/// The user of the connection and its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    user: String,
    /// Rules for required commands that are not permitted.
    missing: Vec<String>,
    /// Commands that are permitted but not required.
    needless: Vec<&'static str>,
}

/// The commands that the scripts use; `K` stands for one of our keys.
#[rustfmt::skip]
const NEEDED: [&str; 28] = [
    "PING", "TIME", "EVAL s 1 K", "EVALSHA d 1 K", "GET K", "MGET K", "SET K v PX 1", "EXISTS K", "DEL K", "UNLINK K",
    "PEXPIRE K 1", "LINDEX K 0", "LLEN K", "LPUSH K v", "LRANGE K 0 1", "LSET K 0 v", "LTRIM K 0 1", "RPUSH K v",
    "RPOP K", "ZADD K 1 m", "ZCARD K", "ZCOUNT K 0 1", "ZRANGE K 0 1", "ZRANGEBYSCORE K 0 1", "ZREM K m",
    "ZREMRANGEBYSCORE K 0 1", "ZSCORE K m", "SELECT 0",
];
const NEEDED_IN_CLUSTER: [&str; 2] = ["CLUSTER SLOTS", "ASKING"];

/// Commands that a limiter should not be permitted to run, and their display names.
const NEEDLESS: [(&str, &str); 6] = [
    ("FLUSHALL", "FLUSHALL"),
    ("KEYS *", "KEYS"),
    ("CONFIG SET maxmemory 0", "CONFIG SET"),
    ("SCRIPT FLUSH", "SCRIPT FLUSH"),
    ("SHUTDOWN", "SHUTDOWN"),
    ("GET not-a-key-of-pacegate", "GET of other keys"),
];

impl Rights {
    /// Queries the permissions. Returns `None` if the server does not support that, as before Redis 7.
    pub(super) async fn look(
        link: &mut Link,
        asker: &str,
        part: Part,
        key: &str,
    ) -> Checked<Option<Self>> {
        let user: String = ACL_WHOAMI.ask(link, asker, &[]).await?;
        let probe: Checked<Value> = ACL_DRYRUN.ask(link, asker, &[&user, "PING"]).await;
        if let Err(failed) = probe {
            return if failed.is_missing_permission() { Err(failed) } else { Ok(None) };
        }
        let cluster = if part == Part::ClusterMaster { &NEEDED_IN_CLUSTER[..] } else { &[] };
        let needed: Vec<&str> = NEEDED.iter().chain(cluster).copied().collect();
        let refused = may_not(link, &user, key, &needed).await;
        let missing = needed.iter().zip(&refused).filter(|(_, refused)| **refused);
        let missing = missing.map(|(command, _)| rule(command)).collect();
        let dangerous = NEEDLESS.map(|(command, _)| command);
        let refused = may_not(link, &user, key, &dangerous).await;
        let needless = NEEDLESS.iter().zip(refused).filter(|(_, refused)| !refused);
        let needless = needless.map(|((_, name), _)| *name).collect();
        Ok(Some(Self { user, missing, needless }))
    }
}

/// Returns for each command whether it would be rejected. Nothing is executed.
async fn may_not(link: &mut Link, user: &str, key: &str, commands: &[&str]) -> Vec<bool> {
    let mut asked = Pipeline::with_capacity(commands.len());
    for command in commands {
        asked.cmd("ACL").arg("DRYRUN").arg(user);
        for word in command.split(' ') {
            asked.arg(if word == "K" { key } else { word });
        }
    }
    let answers = link.wire().run(&asked).await.unwrap_or_default();
    answers.iter().map(|answer| !is_ok(answer)).collect()
}

fn is_ok(answer: &Value) -> bool {
    match answer {
        Value::Okay => true,
        Value::SimpleString(text) => text == "OK",
        Value::BulkString(text) => text == b"OK",
        _ => false,
    }
}

/// Returns the ACL rule that permits a command.
fn rule(command: &str) -> String {
    let mut words = command.split(' ').map(str::to_lowercase);
    let name = words.next().unwrap_or_default();
    match words.next().filter(|_| name == "cluster") {
        Some(second) => format!("+{name}|{second}"),
        None => format!("+{name}"),
    }
}

pub(super) fn check(rights: &Checked<Option<Rights>>, asker: &str, prefix: &str) -> Vec<Finding> {
    let Rights { user, missing, needless } = match rights {
        Err(failed) => return vec![failed.finding("rights")],
        Ok(None) => return vec![table::RIGHTS_UNKNOWN.with(&[&asker])],
        Ok(Some(rights)) => rights,
    };
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(table::RIGHTS_MISSING.with(&[user, &prefix, &missing.join(" ")]));
    }
    if !needless.is_empty() {
        let advice = acl_line(prefix);
        findings.push(table::RIGHTS_NEEDLESS.with(&[user, &needless.join(", "), &advice]));
    }
    if findings.is_empty() {
        findings.push(table::RIGHTS.with(&[user]));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ACL_RULES;

    #[test]
    fn every_rule_of_the_documented_acl_is_checked() {
        let probed: BTreeSet<String> =
            NEEDED.iter().chain(&NEEDED_IN_CLUSTER).map(|command| rule(command)).collect();
        let shipped: BTreeSet<String> =
            ACL_RULES.split_whitespace().skip(1).map(str::to_owned).collect();
        // INFO is optional for a store; only the doctor needs it, and reports if it is missing.
        let optional = BTreeSet::from(["+info".to_owned()]);
        assert_eq!(probed, &shipped - &optional);
    }
}
