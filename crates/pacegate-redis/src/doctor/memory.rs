//! Checks eviction and memory limits: evicted counters start over.

use super::{Finding, Level, ask::Info};

const KEEP: &str = "CONFIG SET maxmemory-policy noeviction, and set it in the config file too; keep data that needs \
                    eviction on another server";

pub(super) fn check(info: &Info) -> Vec<Finding> {
    let limit = info.number("maxmemory").unwrap_or(0);
    let policy = info.text("maxmemory_policy").unwrap_or("unknown");
    let mut findings = vec![eviction(policy, limit), room(info, limit)];
    findings.extend(evicted(info, policy));
    findings
}

fn eviction(policy: &str, limit: u64) -> Finding {
    if policy == "noeviction" {
        return Finding::good("eviction", "live keys are never evicted (noeviction)");
    }
    let text = format!(
        "`{policy}`: {}, so a flood of keys resets the counters of other clients",
        goes_first(policy)
    );
    // Without a memory limit, nothing is evicted yet.
    let level = if limit > 0 { Level::Problem } else { Level::Warning };
    Finding::bad(level, "eviction", text, KEEP)
}

/// Describes which keys a policy evicts. The numbers are from one measurement: 200 exhausted counters, then
/// 200,000 other keys.
fn goes_first(policy: &str) -> &'static str {
    match policy {
        "allkeys-lru" => "evicts the least recently used keys (2 of 200 counters survived a flood)",
        "volatile-lru" => {
            "evicts the least recently used expiring keys, including ours (1 of 200 counters survived a flood)"
        }
        "allkeys-lfu" => {
            "evicts the least frequently used keys (49 of 200 counters survived a flood)"
        }
        "volatile-lfu" => {
            "evicts the least frequently used expiring keys, including ours (48 of 200 counters survived a flood)"
        }
        "allkeys-random" => "evicts random keys (31 of 200 counters survived a flood)",
        "volatile-random" => {
            "evicts random expiring keys, including ours (45 of 200 counters survived a flood)"
        }
        "volatile-ttl" => {
            "evicts the keys with the shortest periods (1 of 200 counters survived a flood)"
        }
        _ => "evicts keys when memory is full",
    }
}

fn evicted(info: &Info, policy: &str) -> Option<Finding> {
    let count = info.number("evicted_keys").filter(|count| *count > 0)?;
    let text =
        format!("{count} keys were evicted since the server started, possibly including counters");
    Some(match policy {
        "noeviction" => {
            let advice = "none if the policy has been changed since then; CONFIG RESETSTAT resets the number";
            Finding::warning("evicted", text, advice)
        }
        _ => Finding::problem("evicted", text, KEEP),
    })
}

/// Checks how close the server is to rejecting new keys.
fn room(info: &Info, limit: u64) -> Finding {
    let Some(used) = info.number("used_memory") else {
        return Finding::notice(
            "memory",
            "the server does not report its memory usage",
            "run INFO memory",
        );
    };
    if limit == 0 {
        let text = format!(
            "{} used, without a limit: a flood of keys can use up the machine's memory",
            mib(used)
        );
        let advice = "CONFIG SET maxmemory 1gb, and set it in the config file too; a million keys take 160 to 176 MB";
        return Finding::warning("memory", text, advice);
    }
    let text = format!("{} of {} used", mib(used), mib(limit));
    if u128::from(used) * 10 <= u128::from(limit) * 9 {
        return Finding::good("memory", text);
    }
    let text =
        format!("{text}; once it is full, new keys are rejected and failure modes apply to them");
    let advice = format!(
        "CONFIG SET maxmemory {}mb, and set it in the config file too",
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
    fn nearly_full_memory_and_evictions_are_warnings() {
        let info = "used_memory:901\nmaxmemory:1000\nmaxmemory_policy:noeviction\nevicted_keys:7";
        let found = levels(info);
        assert_eq!(found[1..], [("memory", Level::Warning), ("evicted", Level::Warning)]);
        let found = levels(&info.replace("noeviction", "allkeys-lru"));
        assert_eq!(found[2], ("evicted", Level::Problem));
    }

    #[test]
    fn sizes_are_in_mebibytes() {
        assert_eq!(mib(0), "0.0 MiB");
        assert_eq!(mib(3 << 19), "1.5 MiB");
        assert_eq!(mib(100 << 20), "100.0 MiB");
    }
}
