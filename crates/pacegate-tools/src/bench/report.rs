//! The report of a run, as text or JSON.

use std::{fmt, time::Duration};

use anstyle::AnsiColor;
use hdrhistogram::Histogram;
use indicatif::HumanCount;
use serde_json::{Value, json};

use super::{check::CheckResult, load::LoadResult};

/// Everything that is reported about a run.
#[derive(Debug)]
pub struct BenchReport {
    /// The parameters of the run: names and values.
    pub asked: Vec<(&'static str, Value)>,
    /// The measurement.
    pub ran: LoadResult,
    /// The check of the decisions, if there was one.
    pub check: Option<Check>,
}

/// The result of the check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The wrong decisions.
    pub result: CheckResult,
    /// True if every request was checked.
    pub complete: bool,
    /// True if denials were judged, which takes keys that were never used before.
    pub denials: bool,
}

/// The reported latencies: name and quantile in hundredths of a percent.
const QUANTILES: [(&str, u64); 4] =
    [("p50", 5_000), ("p90", 9_000), ("p99", 9_900), ("p99.9", 9_990)];
/// Length of the longest bar, in columns.
const BAR: u64 = 50;
/// Maximum number of lines of the histogram.
const LINES: usize = 24;

impl BenchReport {
    /// Returns true if the check found nothing wrong.
    pub fn is_clean(&self) -> bool {
        self.check.is_none_or(|check| check.is_clean())
    }

    /// Returns the responses per second.
    fn rate(&self) -> u64 {
        let nanos = self.ran.elapsed.as_nanos().max(1);
        let rate = u128::from(self.ran.record.in_time) * 1_000_000_000 / nanos;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Returns the server's CPU time per response, in nanoseconds.
    fn server_cpu(&self) -> Option<u64> {
        (self.ran.server_cpu? * 1_000).checked_div(self.ran.record.answered())
    }

    /// Returns the CPU usage of this program, in percent of one CPU.
    fn own_cpu(&self) -> Option<u64> {
        let micros = u64::try_from(self.ran.elapsed.as_micros()).ok()?;
        (self.ran.own_cpu? * 100).checked_div(micros)
    }

    /// Returns the report as one JSON object, with times in seconds.
    pub fn json(&self) -> Value {
        let record = &self.ran.record;
        let mut latency = serde_json::Map::new();
        for (name, nanos) in self.latencies() {
            latency.insert(name.to_owned(), seconds(nanos));
        }
        let mut told = serde_json::Map::new();
        for (name, value) in &self.asked {
            told.insert((*name).to_owned(), value.clone());
        }
        told.extend([
            ("seconds".to_owned(), json!(self.ran.elapsed.as_secs_f64())),
            ("requests".to_owned(), json!(record.answered())),
            ("allowed".to_owned(), json!(record.allowed)),
            ("denied".to_owned(), json!(record.denied)),
            ("failed".to_owned(), json!(record.failed)),
            ("lost".to_owned(), json!(record.lost)),
            ("unsent".to_owned(), json!(record.unsent)),
            ("reconnected".to_owned(), json!(record.reconnected)),
            ("first_failure".to_owned(), json!(record.first_failure)),
            ("per_second".to_owned(), json!(self.rate())),
            ("latency".to_owned(), Value::Object(latency)),
            ("server_cpu_per_decision".to_owned(), self.server_cpu().map_or(Value::Null, seconds)),
            ("generator_cpu_percent".to_owned(), json!(self.own_cpu())),
            ("check".to_owned(), self.check.map_or(Value::Null, Check::json)),
        ]);
        Value::Object(told)
    }

    fn latencies(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let latencies = &self.ran.record.latencies;
        let quantiles = QUANTILES.into_iter();
        let quantiles = quantiles.map(|(name, share)| (name, at_share(latencies, share)));
        quantiles.chain([("max", latencies.max())])
    }
}

/// Returns the value at a quantile, given in ten-thousandths.
fn at_share(latencies: &Histogram<u64>, share: u64) -> u64 {
    latencies.value_at_quantile(Duration::from_micros(share * 100).as_secs_f64())
}

impl Check {
    /// Returns true if no decision was wrong.
    pub fn is_clean(&self) -> bool {
        self.result.over_admitted == 0 && self.result.wrongly_denied == 0
    }

    fn json(self) -> Value {
        let CheckResult { checked, over_admitted, wrongly_denied, keys_wronged, worst } =
            self.result;
        json!({
            "checked": checked,
            "complete": self.complete,
            "over_admitted": over_admitted,
            "wrongly_denied": self.denials.then_some(wrongly_denied),
            "keys": keys_wronged,
            "worst": worst.map(|(key, units)| json!({ "key": key, "over_admitted": units })),
        })
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CheckResult { checked, over_admitted, wrongly_denied, keys_wronged, worst } =
            self.result;
        let first = if self.complete { "" } else { "the first " };
        write!(f, "{first}{} requests: ", HumanCount(checked))?;
        write!(f, "{} over-admitted", HumanCount(over_admitted))?;
        if self.denials {
            write!(f, ", {} wrongly denied", HumanCount(wrongly_denied))?;
        }
        if keys_wronged > 0 {
            write!(
                f,
                ", on {} key{}",
                HumanCount(keys_wronged),
                if keys_wronged == 1 { "" } else { "s" }
            )?;
        }
        if let Some((key, units)) = worst.filter(|_| keys_wronged > 1) {
            write!(f, "; worst: key {key} with {} over-admitted", HumanCount(units))?;
        }
        match self.denials {
            true => Ok(()),
            false => f.write_str("; denials not judged: keys may have been used before"),
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.ran.record;
        for (name, value) in &self.asked {
            match value {
                Value::Null => {}
                Value::String(text) => writeln!(f, "{name:<12}{text}")?,
                value => writeln!(f, "{name:<12}{value}")?,
            }
        }
        writeln!(f)?;
        let (allowed, denied) = (HumanCount(record.allowed), HumanCount(record.denied));
        write!(
            f,
            "{:<12}{} in {:.2?}",
            "requests",
            HumanCount(record.answered()),
            self.ran.elapsed
        )?;
        write!(f, ": {allowed} allowed, {denied} denied")?;
        let others = [(record.failed, "failed"), (record.lost, "lost"), (record.unsent, "unsent")];
        for (count, what) in others {
            if count > 0 {
                write!(f, ", {} {what}", HumanCount(count))?;
            }
        }
        writeln!(f)?;
        if record.reconnected > 0 {
            writeln!(f, "{:<12}{} times", "reconnected", HumanCount(record.reconnected))?;
        }
        if let Some(text) = &record.first_failure {
            writeln!(f, "{:<12}{text}", "failed with")?;
        }
        writeln!(f, "{:<12}{} per second", "throughput", HumanCount(self.rate()))?;
        write!(f, "{:<12}", "latency")?;
        for (name, nanos) in self.latencies() {
            let end = if name == "max" { "\n" } else { ", " };
            write!(f, "{name} {}{end}", Time(nanos))?;
        }
        if let Some(nanos) = self.server_cpu() {
            writeln!(f, "{:<12}{} of the server per decision", "CPU", Time(nanos))?;
        }
        if let Some(percent) = self.own_cpu() {
            writeln!(f, "{:<12}{percent} % of one CPU", "generator")?;
        }
        writeln!(f)?;
        histogram(f, &record.latencies)?;
        let Some(check) = self.check else { return Ok(()) };
        let color = if check.is_clean() { AnsiColor::Green } else { AnsiColor::Red };
        let style = color.on_default();
        writeln!(f, "\n{:<12}{style}{check}{style:#}", "check")
    }
}

/// Writes a histogram with two lines per doubling of the latency.
fn histogram(f: &mut fmt::Formatter<'_>, latencies: &Histogram<u64>) -> fmt::Result {
    if latencies.is_empty() {
        return Ok(());
    }
    let mut lines = Vec::new();
    let mut edges = (10..).flat_map(|power| [1_u64 << power, 3 << (power - 1)]);
    let mut low = 0;
    while low <= latencies.max() && lines.len() < 4 * LINES {
        let Some(high) = edges.next() else { break };
        lines.push((high, latencies.count_between(low, high - 1)));
        low = high;
    }
    let used = lines.iter().position(|(_, count)| *count > 0).unwrap_or(0);
    let lines = &lines[used..];
    let lines = &lines[..lines.len().min(LINES)];
    let most = lines.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (high, count) in lines {
        let share = count * 10_000 / latencies.len();
        let bar = "█".repeat((count * BAR / most) as usize);
        let bar = if bar.is_empty() && *count > 0 { "▏" } else { &bar };
        let (whole, part) = (share / 100, share % 100);
        writeln!(f, "  < {:>8}  {whole:>3}.{part:02} %  {bar}", Time(*high).to_string())?;
    }
    Ok(())
}

fn seconds(nanos: u64) -> Value {
    json!(Duration::from_nanos(nanos).as_secs_f64())
}

/// Displays nanoseconds in a suitable unit, with about three digits.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        match whole {
            0..10 => write!(f, "{whole}.{:02}{name}", rest * 100 / unit),
            10..100 => write!(f, "{whole}.{}{name}", rest * 10 / unit),
            _ => write!(f, "{whole}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let times = [0, 660, 12_340, 999_999, 1_500_000, 2_000_000_000];
        let times = times.map(|nanos| Time(nanos).to_string());
        assert_eq!(times, ["0.00us", "0.66us", "12.3us", "999us", "1.50ms", "2.00s"]);
    }

    #[test]
    fn a_check_shows_its_findings_and_the_number_of_requests() {
        let result = CheckResult { checked: 30, over_admitted: 7, ..CheckResult::default() };
        let result = CheckResult { keys_wronged: 1, worst: Some((0, 7)), ..result };
        let check = Check { result, complete: false, denials: true };
        let words = "the first 30 requests: 7 over-admitted, 0 wrongly denied, on 1 key";
        assert_eq!(check.to_string(), words);
        let check = Check { denials: false, complete: true, ..check };
        let words = "30 requests: 7 over-admitted, on 1 key; denials not judged: keys may have been used before";
        assert_eq!(check.to_string(), words);
        let result = CheckResult { keys_wronged: 2, ..result };
        let check = Check { result, complete: true, denials: true };
        assert!(check.to_string().ends_with("on 2 keys; worst: key 0 with 7 over-admitted"));
    }
}
