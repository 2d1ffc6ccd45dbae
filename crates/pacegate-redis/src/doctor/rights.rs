//! Checks the permissions of the user: missing and unnecessary ones.

use redis::{Pipeline, Value};

use super::{
    Finding, Part,
    ask::{ACL_DRYRUN, ACL_WHOAMI, Seen},
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
const NEEDED: [&str; 26] = [
    "PING",
    "TIME",
    "EVAL s 1 K",
    "EVALSHA d 1 K",
    "GET K",
    "MGET K",
    "SET K v PX 1",
    "EXISTS K",
    "DEL K",
    "UNLINK K",
    "PEXPIRE K 1",
    "LINDEX K 0",
    "LLEN K",
    "LSET K 0 v",
    "LTRIM K 0 1",
    "RPUSH K v",
    "RPOP K",
    "ZADD K 1 m",
    "ZCARD K",
    "ZCOUNT K 0 1",
    "ZRANGE K 0 1",
    "ZRANGEBYSCORE K 0 1",
    "ZREM K m",
    "ZREMRANGEBYSCORE K 0 1",
    "ZSCORE K m",
    "SELECT 0",
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
    ) -> Seen<Option<Self>> {
        let user: String = ACL_WHOAMI.ask(link, asker, &[]).await?;
        let probe: Seen<Value> = ACL_DRYRUN.ask(link, asker, &[&user, "PING"]).await;
        if let Err(blind) = probe {
            return if blind.is_for_want_of_rights() { Err(blind) } else { Ok(None) };
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

pub(super) fn check(rights: &Seen<Option<Rights>>, asker: &str, prefix: &str) -> Vec<Finding> {
    const SUBJECT: &str = "rights";
    let rights = match rights {
        Err(blind) => return vec![blind.finding(SUBJECT)],
        Ok(None) => {
            let text = format!("user `{asker}`; permissions cannot be checked before Redis 7");
            return vec![Finding::good(SUBJECT, text)];
        }
        Ok(Some(rights)) => rights,
    };
    let mut findings = Vec::new();
    let user = &rights.user;
    if !rights.missing.is_empty() {
        let rules = rights.missing.join(" ");
        let text =
            format!("`{user}` lacks permissions for keys with the prefix `{prefix}`: {rules}");
        let advice = format!("ACL SETUSER {user} ~{prefix}* {rules}");
        findings.push(Finding::problem(SUBJECT, text, advice));
    }
    if !rights.needless.is_empty() {
        let text =
            format!("`{user}` has more permissions than needed: {}", rights.needless.join(", "));
        findings.push(Finding::notice(SUBJECT, text, acl_line(prefix)));
    }
    if findings.is_empty() {
        let text = format!("`{user}` has exactly the permissions that it needs");
        findings.push(Finding::good(SUBJECT, text));
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
