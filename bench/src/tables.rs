//! The results as Markdown tables for the documentation.

use crate::report::Row;

const NS: &str = "ns per check";
const BYTES: &str = "bytes per key";
const CPU: &str = "server CPU us per decision";
const REDIS_CPU: &str = "Redis CPU us per decision";
const RATE: &str = "decisions per second";
const P99: &str = "p99 in us";

/// Returns the tables of a benchmark, or nothing if it has none.
pub fn markdown(benchmark: &str, rows: &[Row]) -> String {
    let results = Results(rows);
    match benchmark {
        "engine" => results.engine(),
        "redis" => results.redis(),
        "service" => results.service(),
        "scale" => results.scale(),
        _ => String::new(),
    }
}

struct Results<'a>(&'a [Row]);

impl Results<'_> {
    /// Returns the median of a subject, or the lowest of those whose names begin with `subject`.
    fn median(&self, case: &str, subject: &str, metric: &str) -> Option<f64> {
        let mut rows = self.0.iter().filter(|row| row.case == case && row.metric == metric);
        let exact = rows.find(|row| row.subject == subject).map(|row| row.median);
        exact.or_else(|| self.lowest(case, subject, metric))
    }

    /// Returns the lowest median of the variants of a subject, whose names begin with `subject`.
    fn lowest(&self, case: &str, subject: &str, metric: &str) -> Option<f64> {
        let rows = self.0.iter().filter(|row| row.case == case && row.metric == metric);
        let variants = rows.filter(|row| row.subject.starts_with(subject));
        variants.map(|row| row.median).min_by(f64::total_cmp)
    }

    fn text(&self, case: &str, subject: &str, metric: &str) -> String {
        self.median(case, subject, metric).map_or_else(String::new, number)
    }

    fn engine(&self) -> String {
        let mut out =
            "\n| check one key, ns (times as long as Pacegate) | Pacegate | in batches of 16 | \
             governor, its best | throttlecrab | limitador |\n|---|---|---|---|---|---|\n"
                .to_owned();
        for (name, case) in [
            ("one key", "hot key"),
            ("10,000 keys, uniform", "10k uniform"),
            ("1 M keys, zipf 0.99", "1M zipf"),
        ] {
            for threads in [1, 2, 4, 8] {
                let case = format!("{case} {threads}t");
                let Some(own) = self.median(&case, "pacegate", NS) else { continue };
                let batch = self.text(&format!("{case} batch"), "pacegate", NS);
                let others = ["governor", "throttlecrab", "limitador"].map(|other| {
                    let ratio = self.lowest(&case, other, "time, relative to pacegate");
                    let ratio = ratio.map(|ratio| format!(" ({ratio:.1}×)")).unwrap_or_default();
                    let time = self.lowest(&case, other, NS).map_or_else(String::new, number);
                    format!("{time}{ratio}")
                });
                let plural = if threads == 1 { "" } else { "s" };
                let own = number(own);
                let others = others.join(" | ");
                out +=
                    &format!("| {name}, {threads} thread{plural} | {own} | {batch} | {others} |\n");
            }
        }
        out += "\n| bytes per key at 1 M keys | Pacegate | governor | throttlecrab | limitador |\n";
        out += "|---|---|---|---|---|\n";
        for (name, case) in [("live", "1M keys"), ("after expiry", "1M keys, expired")] {
            let subjects = ["pacegate", "governor", "throttlecrab", "limitador"];
            let values = subjects.map(|subject| self.text(case, subject, BYTES)).join(" | ");
            out += &format!("| {name} | {values} |\n");
        }
        out
    }

    fn redis(&self) -> String {
        let mut out = "\n| case | decisions per second | relative to (a) | p99 in µs, (a) | \
             server CPU per decision in µs, \
             (a) | relative to (a) |\n|---|---|---|---|---|---|\n"
            .to_owned();
        for case in self.cases(RATE) {
            let both = |metric| {
                format!(
                    "{}, (a) {}",
                    self.text(case, "pacegate", metric),
                    self.text(case, "(a)", metric)
                )
            };
            let own = |metric| self.text(case, "pacegate", metric);
            let (rate, cpu) =
                (own("decisions, relative to (a)"), own("server CPU, relative to (a)"));
            let (p99, absolute) = (both(P99), both("server CPU us per decision"));
            out += &format!("| {case} | {} | {rate} | {p99} | {absolute} | {cpu} |\n", own(RATE));
        }
        out
    }

    fn service(&self) -> String {
        let mut out = "\n| server CPU per decision, µs | Pacegate | redis-server, `INCR` | Lua script on Redis | \
             throttlecrab | constant response |\n|---|---|---|---|---|---|\n"
            .to_owned();
        let others = ["redis INCR", "redis seed", "throttlecrab", "constant"];
        for (name, case, own) in [
            ("RESP, one at a time", "RESP P1", "pacegate CL."),
            ("RESP, 16 in a pipeline", "RESP P16", "pacegate CL."),
            ("RESP, 64 in a pipeline", "RESP P64", "pacegate CL."),
            ("HTTP, `POST /v1/check` with a policy and headers", "HTTP", "pacegate"),
            ("gRPC, Envoy's `ShouldRateLimit`", "gRPC", "pacegate"),
        ] {
            let own = self.text(case, own, CPU);
            let others = others.map(|other| self.text(case, other, CPU)).join(" | ");
            out += &format!("| {name} | {own} | {others} |\n");
        }
        out += "\n| on Redis | server CPU, µs | in memory | ratio | Redis CPU, µs | p99, ms |\n";
        out += "|---|---|---|---|---|---|\n";
        for case in self.cases(CPU).into_iter().filter(|case| case.contains("on Redis")) {
            let own = |metric| self.text(case, "pacegate", metric);
            let memory = self.text(case, "the same", CPU);
            let ratio = own("server CPU, relative to the same in memory");
            let p99 = self
                .median(case, "pacegate", P99)
                .map_or_else(String::new, |p99| number(p99 / 1e3));
            out += &format!(
                "| {case} | {} | {memory} | {ratio} | {} | {p99} |\n",
                own(CPU),
                own(REDIS_CPU)
            );
        }
        out
    }

    fn scale(&self) -> String {
        let mut out =
            "\n| | | cost per decision | times the smallest | also |\n|---|---|---|---|---|\n"
                .to_owned();
        let growth = "cost, relative to the smallest";
        for row in self.0.iter().filter(|row| row.metric == growth) {
            let (case, size) = (&*row.case, &*row.subject);
            let text = |metric, unit: &str| {
                let value = self.median(case, size, metric);
                value.map(|value| format!("{} {unit}", number(value))).unwrap_or_default()
            };
            let (cost, also) = match case {
                "keys" => (text(NS, "ns"), text(BYTES, "bytes per key")),
                "policies" => (text(NS, "ns"), String::new()),
                "connections" => (
                    text(CPU, "µs of the server"),
                    format!(
                        "p99 {}, {}",
                        text(P99, "µs"),
                        text("peak memory of the server in MiB", "MiB")
                    ),
                ),
                _ => (
                    text(REDIS_CPU, "µs of Redis"),
                    format!("{}, p99 {}", text(CPU, "µs of the servers"), text(P99, "µs")),
                ),
            };
            out += &format!("| {case} | {size} | {cost} | {} | {also} |\n", number(row.median));
        }
        out
    }

    /// Returns the names of all cases with a metric, in order.
    fn cases(&self, metric: &str) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for row in self.0.iter().filter(|row| row.metric == metric) {
            if !cases.contains(&&*row.case) {
                cases.push(&row.case);
            }
        }
        cases
    }
}

/// Formats a number with two or three significant digits.
fn number(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => thousands(value.round() as u64),
        value if value >= 20.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn thousands(value: u64) -> String {
    match value / 1_000 {
        0 => value.to_string(),
        above => format!("{},{:03}", thousands(above), value % 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.034, 1.25, 19.94, 34.2, 1_234.5, 5_150_000.0].map(number);
        assert_eq!(texts, ["0.03", "1.2", "19.9", "34", "1,235", "5,150,000"]);
    }
}
