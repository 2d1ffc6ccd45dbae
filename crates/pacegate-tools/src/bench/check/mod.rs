//! Checks whether a server that enforces the limit can have produced a history. Reports units that were
//! certainly over-admitted and requests that were certainly wrongly denied. `docs/decisions/bench-check.md`
//! has the reasoning.

mod denied;
mod over;
#[cfg(test)]
mod tests;

use pacegate::Limit;

use super::history::{Answer, Exchange, History};

/// The limit that a server has to enforce, and how exactly it can be checked.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The limit that the server enforces.
    pub limit: Limit,
    /// The start of its fixed windows.
    pub windows: Windows,
    /// Maximum difference between the server's clock and ours, in microseconds.
    pub skew: u64,
    /// True if keys may have been used before the run. Then there may be less room than the history shows,
    /// and denials are not judged.
    pub used: bool,
}

/// Start times of the windows of a fixed-window limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Windows {
    /// At multiples of the period since the Unix epoch
    Aligned,
    /// At the first request after the last window, like counters that expire
    Anchored,
}

/// The certain findings of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckResult {
    /// Number of requests checked.
    pub checked: u64,
    /// Units that no server which enforces the limit can have admitted.
    pub over_admitted: u64,
    /// Requests that every server which enforces the limit would have admitted.
    pub wrongly_denied: u64,
    /// Number of keys with at least one finding.
    pub keys_wronged: u64,
    /// The key with the most over-admitted units, and their number.
    pub worst: Option<(u32, u64)>,
}

/// A request and the interval in which it was decided, inclusive at both ends.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: u64,
    to: u64,
    units: u64,
}

/// The requests of one key.
#[derive(Debug, Default)]
struct Requests {
    /// Sorted by `to`.
    allowed: Vec<Interval>,
    /// Everything that may have been charged.
    charged: Vec<Interval>,
    denied: Vec<Interval>,
    /// True if these are all requests that the key ever had.
    whole: bool,
}

/// Checks every key. Reorders the history.
pub fn check(rule: &Rule, history: &mut History) -> CheckResult {
    let full_from = history.full_from().unwrap_or(u64::MAX);
    let entries = history.entries_mut();
    entries.sort_unstable_by_key(|entry| (entry.key, entry.received(), entry.sent));
    let mut result = CheckResult { checked: entries.len() as u64, ..CheckResult::default() };
    let whole = full_from == u64::MAX && !rule.used;
    let mut requests = Requests { whole, ..Requests::default() };
    for of_key in entries.chunk_by(|a, b| a.key == b.key) {
        requests.fill(of_key, rule.skew, full_from);
        let over = over::over_admitted(rule, &requests);
        let denied = if rule.used { 0 } else { denied::wrongly_denied(rule, &requests) };
        result.over_admitted += over;
        result.wrongly_denied += denied;
        result.keys_wronged += u64::from(over + denied > 0);
        if over > result.worst.map_or(0, |(_, most)| most) {
            result.worst = of_key.first().map(|entry| (entry.key, over));
        }
    }
    result
}

impl Requests {
    /// Sorts one key's entries into the lists. Skips denials that may have come after a missing request,
    /// because they prove nothing.
    fn fill(&mut self, entries: &[Exchange], skew: u64, full_from: u64) {
        self.allowed.clear();
        self.charged.clear();
        self.denied.clear();
        for entry in entries {
            let span = Interval::new(entry, skew);
            match entry.answer {
                Answer::Allowed => {
                    self.allowed.push(span);
                    self.charged.push(span);
                }
                Answer::Unknown => self.charged.push(span),
                Answer::Denied if entry.received() < full_from => self.denied.push(span),
                Answer::Denied => {}
            }
        }
    }
}

impl Interval {
    fn new(entry: &Exchange, skew: u64) -> Self {
        Self {
            from: entry.sent.saturating_sub(skew),
            to: entry.received() + skew,
            units: u64::from(entry.cost),
        }
    }
}
