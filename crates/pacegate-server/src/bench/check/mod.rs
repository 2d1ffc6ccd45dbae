//! Whether a history can have come from a server that holds the limit: what is certainly over-admitted, and what is
//! certainly wrongly denied. The reasoning is in `docs/decisions/bench-check.md`.

mod denied;
mod over;
#[cfg(test)]
mod tests;

use pacegate::Limit;

use super::history::{Answer, Entry, History};

/// What a server is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    pub(crate) windows: Windows,
    /// How far the server's clock may be from ours, in microseconds.
    pub(crate) skew: u64,
    /// Whether keys may have been used before the history begins. Then there may be less room than it tells, and no
    /// denial is judged.
    pub(crate) used: bool,
}

/// Where the windows of a fixed window begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Windows {
    /// At whole multiples of the period since the epoch
    Aligned,
    /// With the first request after the last window, as counters do that expire
    Anchored,
}

/// What is certain about a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Requests looked at.
    pub(crate) checked: u64,
    /// Units that no server which holds the limit can have admitted.
    pub(crate) over_admitted: u64,
    /// Requests that any server which holds the limit would have admitted.
    pub(crate) wrongly_denied: u64,
    /// Keys with either.
    pub(crate) keys_wronged: u64,
    /// The key with most units over-admitted, and how many.
    pub(crate) worst: Option<(u32, u64)>,
}

/// A request and the times between which it was decided, both included.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
    units: u64,
}

/// The requests of one key.
#[derive(Debug, Default)]
struct Requests {
    /// In the order of `to`.
    allowed: Vec<Span>,
    /// Everything that may have been charged.
    charged: Vec<Span>,
    denied: Vec<Span>,
    /// Whether these are all that the key was ever asked for.
    whole: bool,
}

/// Checks every key. The history is put into another order.
pub(crate) fn check(rule: &Rule, history: &mut History) -> Verdict {
    let full_from = history.full_from().unwrap_or(u64::MAX);
    let entries = history.entries_mut();
    entries.sort_unstable_by_key(|entry| (entry.key, entry.received(), entry.sent));
    let mut verdict = Verdict { checked: entries.len() as u64, ..Verdict::default() };
    let whole = full_from == u64::MAX && !rule.used;
    let mut requests = Requests { whole, ..Requests::default() };
    for of_key in entries.chunk_by(|a, b| a.key == b.key) {
        requests.fill(of_key, rule.skew, full_from);
        let over = over::over_admitted(rule, &requests);
        let denied = if rule.used { 0 } else { denied::wrongly_denied(rule, &requests) };
        verdict.over_admitted += over;
        verdict.wrongly_denied += denied;
        verdict.keys_wronged += u64::from(over + denied > 0);
        if over > verdict.worst.map_or(0, |(_, most)| most) {
            verdict.worst = of_key.first().map(|entry| (entry.key, over));
        }
    }
    verdict
}

impl Requests {
    /// A denial that may have come after requests which are missing proves nothing, and is left out.
    fn fill(&mut self, entries: &[Entry], skew: u64, full_from: u64) {
        self.allowed.clear();
        self.charged.clear();
        self.denied.clear();
        for entry in entries {
            let span = Span::new(entry, skew);
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

impl Span {
    fn new(entry: &Entry, skew: u64) -> Self {
        Self {
            from: entry.sent.saturating_sub(skew),
            to: entry.received() + skew,
            units: u64::from(entry.cost),
        }
    }
}
