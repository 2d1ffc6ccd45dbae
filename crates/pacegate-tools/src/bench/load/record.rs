//! The outcomes of the requests of one thread, or of all.

use hdrhistogram::Histogram;

use super::Timer;
use crate::bench::{
    history::{Answer, Exchange, History, NEVER},
    target::Reply,
};

/// Counts, latencies and the history.
#[derive(Debug)]
pub struct Record {
    /// Responses after the warm-up.
    pub allowed: u64,
    pub denied: u64,
    pub failed: u64,
    /// Requests that were never answered, including the warm-up.
    pub lost: u64,
    /// Requests that were due but found no connection with room before the end, including the warm-up.
    pub unsent: u64,
    /// Responses that arrived before the end.
    pub in_time: u64,
    /// Number of reconnects.
    pub reconnected: u64,
    /// The first response that was neither allowed nor denied.
    pub first_failure: Option<String>,
    /// In nanoseconds. Lost and unsent requests count with the time that they waited.
    pub latencies: Histogram<u64>,
    pub history: History,
    /// Time of the last response, or of giving up on it, in nanoseconds since the start.
    pub(super) last: u64,
}

/// A request in flight; times in nanoseconds since the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) key: u32,
    /// Index of its cost.
    pub(super) cost: usize,
    pub(super) sent: u64,
    /// Time at which it should have been sent.
    pub(super) due: u64,
}

/// Range of the latency histogram, in nanoseconds.
const MIN_LATENCY: u64 = 1_000;
const MAX_LATENCY: u64 = 600_000_000_000;
/// Significant decimal digits of the histogram.
const PRECISION: u8 = 3;

impl Record {
    pub(super) fn new(keep: usize) -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants")]
        let latencies =
            Histogram::new_with_bounds(MIN_LATENCY, MAX_LATENCY, PRECISION).expect("bounds");
        Self {
            allowed: 0,
            denied: 0,
            failed: 0,
            lost: 0,
            unsent: 0,
            in_time: 0,
            reconnected: 0,
            first_failure: None,
            latencies,
            history: History::new(keep),
            last: 0,
        }
    }

    /// Returns the number of responses in the measurement.
    pub fn answered(&self) -> u64 {
        self.allowed + self.denied + self.failed
    }

    #[inline]
    pub(super) fn answer(
        &mut self,
        timer: &Timer,
        asked: Asked,
        cost: u32,
        reply: Reply,
        now: u64,
    ) {
        let answer = match &reply {
            Reply::Allowed => Answer::Allowed,
            Reply::Denied => Answer::Denied,
            Reply::Failed(_) => Answer::Unknown,
        };
        self.keep(timer, asked, cost, answer, now);
        self.last = now;
        if let Reply::Failed(text) = reply {
            self.first_failure.get_or_insert(text);
        }
        if asked.due < timer.warm {
            return;
        }
        match answer {
            Answer::Allowed => self.allowed += 1,
            Answer::Denied => self.denied += 1,
            Answer::Unknown => self.failed += 1,
        }
        self.in_time += u64::from(now <= timer.end);
        self.latencies.saturating_record(now - asked.due);
    }

    /// Records a request that will not be answered.
    pub(super) fn lose(&mut self, timer: &Timer, asked: Asked, cost: u32, now: u64) {
        self.lost += 1;
        self.last = self.last.max(now);
        self.wait_in_vain(timer, 1, asked.due, now);
        let sent = timer.wall + asked.sent / 1_000;
        let entry = Exchange { sent, took: NEVER, key: asked.key, cost, answer: Answer::Unknown };
        self.history.push(entry);
    }

    /// Records requests that were due but never sent; `due` is the due time of the last one.
    pub(super) fn leave(&mut self, timer: &Timer, count: u64, due: u64, now: u64) {
        self.unsent += count;
        self.wait_in_vain(timer, count, due, now);
    }

    fn wait_in_vain(&mut self, timer: &Timer, count: u64, due: u64, now: u64) {
        if due >= timer.warm {
            self.latencies.saturating_record_n(now.saturating_sub(due), count);
        }
    }

    fn keep(&mut self, timer: &Timer, asked: Asked, cost: u32, answer: Answer, now: u64) {
        // Round outwards: the server's clock may tick at a different fraction of our microsecond.
        let sent = timer.wall + asked.sent / 1_000;
        let took = timer.wall + now / 1_000 + 1 - sent;
        let took = u32::try_from(took).unwrap_or(NEVER);
        self.history.push(Exchange { sent, took, key: asked.key, cost, answer });
    }

    pub(super) fn join(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.failed += other.failed;
        self.lost += other.lost;
        self.unsent += other.unsent;
        self.in_time += other.in_time;
        self.reconnected += other.reconnected;
        self.last = self.last.max(other.last);
        self.first_failure = self.first_failure.take().or(other.first_failure);
        // Adding cannot fail: both have the same bounds.
        let _ = self.latencies.add(other.latencies);
        self.history.join(other.history);
    }
}
