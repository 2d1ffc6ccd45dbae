//! Counters as text for Prometheus. Names and labels are those of the default mapping of envoyproxy/ratelimit, whose
//! counters have no suffix `_total`.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use super::{config_loads, grpc, hits::STATISTICS, summed};
use crate::active_config::ActiveConfig;

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The labels of a rule. Levels below the second have none.
const LABELS: [&str; 3] = ["domain", "key1", "key2"];

/// Returns all counters.
pub(super) fn text(active: &ActiveConfig) -> String {
    let stats = &active.revision().hits;
    let mut page = Page::default();
    let mut rules: BTreeMap<String, [u64; STATISTICS.len()]> = BTreeMap::new();
    for (name, hits) in stats.hits() {
        let labels = LABELS.iter().zip(&name);
        let labels: Vec<_> = labels.map(|(label, value)| label_text(label, value)).collect();
        let sums = rules.entry(labels.join(",")).or_default();
        sums.iter_mut().zip(hits).for_each(|(sum, hits)| *sum += hits);
    }
    for (place, statistic) in STATISTICS.iter().enumerate() {
        let hits = rules.iter().map(|(labels, hits)| (&**labels, hits[place]));
        page.counters(&format!("rate_limit_{statistic}"), hits.filter(|(_, hits)| *hits > 0));
    }
    for (domain, count) in domains(stats.unknown_domains()) {
        page.counters(&format!("rate_limit_{domain}_domain_not_found"), [("", count)]);
    }
    let [(_, redis), (_, service), (shadow, global)] = stats.calls();
    let errors = [(r#"err_type="redis_error""#, redis), (r#"err_type="service_error""#, service)];
    page.counters("should_rate_limit_error", errors);
    page.counters(shadow, [("", global)]);
    for (name, count) in config_loads(active) {
        page.counters(name, [("", count)]);
    }
    page.calls(active);
    page.memory();
    page.0
}

/// Replaces the characters of domains that names of metrics cannot have. Domains that become equal are added.
fn domains(unknown: Vec<(String, u64)>) -> BTreeMap<String, u64> {
    let is_other = |char: char| !char.is_ascii_alphanumeric();
    summed(unknown.into_iter().map(|(domain, count)| (domain.replace(is_other, "_"), count)))
}

fn label_text(label: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    format!(r#"{label}="{value}""#)
}

#[derive(Default)]
struct Page(String);

impl Page {
    /// Adds a family of counters with their labels.
    fn counters<'a>(&mut self, name: &str, counts: impl IntoIterator<Item = (&'a str, u64)>) {
        self.family(&format!("ratelimit_service_{name}"), "counter", counts);
    }

    fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.line(format_args!("# TYPE {name} {kind}"));
        for (labels, value) in values {
            match labels {
                "" => self.line(format_args!("{name} {value}")),
                _ => self.line(format_args!("{name}{{{labels}}} {value}")),
            }
        }
    }

    /// Adds the number of gRPC calls and their times.
    fn calls(&mut self, active: &ActiveConfig) {
        let Some(grpc) = grpc(active) else { return };
        let calls = grpc.latency();
        let method = r#"grpc_method="ShouldRateLimit""#;
        self.counters("total_requests", [(method, calls.count())]);
        let name = "ratelimit_service_response_time_seconds";
        self.line(format_args!("# TYPE {name} histogram"));
        let mut sum = 0;
        for (bound, count) in calls.buckets() {
            sum += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            self.line(format_args!("{name}_bucket{{{method},le=\"{bound}\"}} {sum}"));
        }
        let seconds = grpc.total_time().as_secs_f64();
        self.line(format_args!("{name}_sum{{{method}}} {seconds}"));
        self.line(format_args!("{name}_count{{{method}}} {sum}"));
    }

    /// Adds the memory of the process, where the system reports it.
    fn memory(&mut self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (field, name) in [
            ("VmRSS:", "process_resident_memory_bytes"),
            ("VmSize:", "process_virtual_memory_bytes"),
        ] {
            let value = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = value.and_then(|value| value.split_whitespace().next());
            if let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()) {
                self.family(name, "gauge", [("", kib * 1024)]);
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_with_equal_metrics_are_added() {
        let unknown = [("a.b", 2), ("a-b", 3), ("c", 4)].map(|(name, count)| (name.into(), count));
        let expected = [("a_b", 5), ("c", 4)].map(|(name, count)| (name.into(), count));
        assert_eq!(domains(unknown.into()), expected.into());
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label_text("key1", "a\"\\\n"), r#"key1="a\"\\\n""#);
    }
}
