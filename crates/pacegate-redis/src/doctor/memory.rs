//! Checks eviction and memory limits: evicted counters start over.

use super::{Finding, ask::Info, findings as table};

/// The keys that each policy evicts. The numbers are from one measurement: 200 exhausted counters, then 200,000 other
/// keys.
#[rustfmt::skip]
const EVICTION_POLICIES: [(&str, &str); 7] = [
    ("allkeys-lru", "evicts the least recently used keys (2 of 200 counters survived a flood)"),
    (
        "volatile-lru",
        "evicts the least recently used expiring keys, including ours (1 of 200 counters survived a flood)",
    ),
    ("allkeys-lfu", "evicts the least frequently used keys (49 of 200 counters survived a flood)"),
    (
        "volatile-lfu",
        "evicts the least frequently used expiring keys, including ours (48 of 200 counters survived a flood)",
    ),
    ("allkeys-random", "evicts random keys (31 of 200 counters survived a flood)"),
    ("volatile-random", "evicts random expiring keys, including ours (45 of 200 counters survived a flood)"),
    ("volatile-ttl", "evicts the keys with the shortest periods (1 of 200 counters survived a flood)"),
];

pub(super) fn check(info: &Info) -> Vec<Finding> {
    let limit = info.number("maxmemory").unwrap_or(0);
    let policy = info.text("maxmemory_policy").unwrap_or("unknown");
    let mut findings = vec![eviction(policy, limit), room(info, limit)];
    if let Some(count) = info.number("evicted_keys").filter(|count| *count > 0) {
        let row = if policy == "noeviction" { table::EVICTED_BEFORE } else { table::EVICTED };
        findings.push(row.with(&[&count]));
    }
    findings
}

fn eviction(policy: &str, limit: u64) -> Finding {
    if policy == "noeviction" {
        return table::NO_EVICTION.with(&[]);
    }
    let known = EVICTION_POLICIES.iter().find(|(name, _)| *name == policy);
    let victims = known.map_or("evicts keys when memory is full", |(_, victims)| victims);
    let row = if limit > 0 { table::EVICTION } else { table::EVICTION_LATER };
    row.with(&[&policy, &victims])
}

/// Checks how close the server is to rejecting new keys.
fn room(info: &Info, limit: u64) -> Finding {
    let Some(used) = info.number("used_memory") else { return table::MEMORY_UNKNOWN.with(&[]) };
    if limit == 0 {
        return table::MEMORY_UNLIMITED.with(&[&mib(used)]);
    }
    let is_roomy = u128::from(used) * 10 <= u128::from(limit) * 9;
    let row = if is_roomy { table::MEMORY } else { table::MEMORY_NEARLY_FULL };
    row.with(&[&mib(used), &mib(limit), &(limit >> 19).max(2)])
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, (bytes >> 10 & 1023) * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

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
