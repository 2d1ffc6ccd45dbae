//! Whether what is counted stays counted when memory gets short.

use super::{Finding, Level, ask::Info};

const KEEP: &str = "CONFIG SET maxmemory-policy noeviction, and the same in the server's file; what needs eviction \
                    belongs on another server";

pub(super) fn check(info: &Info) -> Vec<Finding> {
    let limit = info.number("maxmemory").unwrap_or(0);
    let policy = info.text("maxmemory_policy").unwrap_or("unknown");
    let mut findings = vec![eviction(policy, limit), room(info, limit)];
    findings.extend(evicted(info, policy));
    findings
}

fn eviction(policy: &str, limit: u64) -> Finding {
    if policy == "noeviction" {
        return Finding::good("eviction", "nothing live is evicted (noeviction)");
    }
    let text = format!(
        "`{policy}`: {}, so a flood of keys resets the counters of other clients, who may then begin anew",
        goes_first(policy)
    );
    // Without a limit of memory nothing is evicted yet.
    let level = if limit > 0 { Level::Problem } else { Level::Warning };
    Finding::bad(level, "eviction", text, KEEP)
}

/// What each policy lets go. The numbers are of one measurement: 200 used up counters, and then 200,000 other keys.
fn goes_first(policy: &str) -> &'static str {
    match policy {
        "allkeys-lru" => {
            "the keys not used for longest go first (2 of 200 counters outlived a flood)"
        }
        "volatile-lru" => {
            "the keys not used for longest go first, and all of ours may (1 of 200 counters outlived a flood)"
        }
        "allkeys-lfu" => "the keys used least often go first (49 of 200 counters outlived a flood)",
        "volatile-lfu" => {
            "the keys used least often go first, and all of ours may (48 of 200 counters outlived a flood)"
        }
        "allkeys-random" => "any key may go (31 of 200 counters outlived a flood)",
        "volatile-random" => "any key of ours may go (45 of 200 counters outlived a flood)",
        "volatile-ttl" => "the keys of short periods go first (1 of 200 counters outlived a flood)",
        _ => "keys go when memory gets short",
    }
}

fn evicted(info: &Info, policy: &str) -> Option<Finding> {
    let count = info.number("evicted_keys").filter(|count| *count > 0)?;
    let text =
        format!("{count} keys were evicted since the server started; counters may be among them");
    Some(match policy {
        "noeviction" => {
            let advice = "nothing, if the policy was changed since: CONFIG RESETSTAT counts anew";
            Finding::warning("evicted", text, advice)
        }
        _ => Finding::problem("evicted", text, KEEP),
    })
}

/// How far the server is from refusing new keys.
fn room(info: &Info, limit: u64) -> Finding {
    let Some(used) = info.number("used_memory") else {
        return Finding::notice(
            "memory",
            "the server does not say what it uses",
            "ask it: INFO memory",
        );
    };
    if limit == 0 {
        let text = format!(
            "{} used, and no limit: a flood of keys takes all memory of the machine",
            mib(used)
        );
        let advice = "CONFIG SET maxmemory 1gb, and the same in the server's file; a million keys take 160 to 176 MB";
        return Finding::warning("memory", text, advice);
    }
    let text = format!("{} of {} used", mib(used), mib(limit));
    if u128::from(used) * 10 <= u128::from(limit) * 9 {
        return Finding::good("memory", text);
    }
    let text = format!(
        "{text}; once it is full there is no room for new keys, and failure modes decide for them"
    );
    let advice = format!(
        "CONFIG SET maxmemory {}mb, and the same in the server's file",
        (limit >> 19).max(2)
    );
    Finding::warning("memory", text, advice)
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, (bytes >> 10 & 1023) * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(info: &str) -> Vec<(&'static str, Level)> {
        let findings = check(&Info::new(info));
        assert!(findings.iter().all(|f| f.advice.is_some() == (f.level > Level::Good)));
        findings.iter().map(|finding| (finding.subject, finding.level)).collect()
    }

    #[test]
    fn eviction_is_a_problem_once_memory_has_a_limit() {
        let info = "used_memory:900\nmaxmemory:1000\nmaxmemory_policy:";
        let memory = ("memory", Level::Good);
        assert_eq!(levels(&format!("{info}noeviction")), [("eviction", Level::Good), memory]);
        assert_eq!(levels(&format!("{info}volatile-ttl")), [("eviction", Level::Problem), memory]);
        let unlimited = "used_memory:900\nmaxmemory:0\nmaxmemory_policy:allkeys-lru";
        assert_eq!(levels(unlimited), [("eviction", Level::Warning), ("memory", Level::Warning)]);
    }

    #[test]
    fn a_server_that_is_nearly_full_or_has_evicted_is_told() {
        let info = "used_memory:901\nmaxmemory:1000\nmaxmemory_policy:noeviction\nevicted_keys:7";
        let found = levels(info);
        assert_eq!(found[1..], [("memory", Level::Warning), ("evicted", Level::Warning)]);
        let found = levels(&info.replace("noeviction", "allkeys-lru"));
        assert_eq!(found[2], ("evicted", Level::Problem));
    }

    #[test]
    fn sizes_are_told_in_mebibytes() {
        assert_eq!(mib(0), "0.0 MiB");
        assert_eq!(mib(3 << 19), "1.5 MiB");
        assert_eq!(mib(100 << 20), "100.0 MiB");
    }
}
