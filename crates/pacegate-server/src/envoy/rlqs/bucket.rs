//! The state of one bucket of one Envoy: its demand, its assignment, and the time of the next one.

use std::time::Duration;

use tokio::time::Instant;

use super::share::Rate;

/// A bucket of an Envoy.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// `None` until a report covers at least [`MIN_MEASURED`].
    pub(super) rate: Option<Rate>,
    reported: Option<Instant>,
    state: BucketState,
    /// The time at which the bucket needs a new assignment, even if tokens of the current one are left.
    ends: Option<Instant>,
    /// The time of the next assignment. `None`: after the next report.
    pub(super) due: Option<Instant>,
    /// Consecutive reports without requests.
    idle_reports: u32,
    /// Units that were assigned and not yet reported as used, if Envoy had no tokens before this stream. Used to detect
    /// requests that pass without an assignment.
    unused: Option<u64>,
}

/// The last message to Envoy about a bucket.
#[derive(Clone, Copy, Debug, Default)]
enum BucketState {
    /// None so far.
    #[default]
    New,
    /// Tokens, of which reports have shown some as used. None if there is nothing to assign.
    Tokens { at: Instant, units: u64, used: u64, is_scarce: bool },
    /// No limit applies.
    Unlimited,
}

/// The requests of a bucket since the previous report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The time since the previous report, by the clock of Envoy.
    pub(super) elapsed: Duration,
}

/// The shortest time over which demand is measured.
const MIN_MEASURED: Duration = Duration::from_secs(1);
/// The shortest time between two assignments of a bucket, so that a tight limit does not lead to a message for each
/// request.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// New tokens replace unused ones. If units are scarce, new tokens are sent shortly after the old ones are expected to
/// be used up, so that few are lost.
const SCARCE_DELAY: Duration = Duration::from_millis(100);
/// Otherwise new tokens are sent earlier, so that no request is denied.
const AMPLE_LEAD: Duration = Duration::from_millis(500);
/// Reports without requests until the server abandons a bucket: two minutes.
const MAX_IDLE_REPORTS: u32 = 24;

impl Bucket {
    /// Records a report. Returns false if requests have passed without an assignment.
    pub(super) fn report(&mut self, now: Instant, usage: Usage) -> bool {
        let previous = self.reported.replace(now);
        let requests = usage.allowed.saturating_add(usage.denied);
        let measured = previous.map_or(usage.elapsed, |previous| now - previous);
        if measured >= MIN_MEASURED {
            self.rate = Some(Rate::new(requests, measured));
        }
        self.idle_reports = if requests == 0 { self.idle_reports.saturating_add(1) } else { 0 };
        if previous.is_none() && usage.elapsed.is_zero() {
            self.unused = Some(0);
        }
        if let BucketState::Tokens { at, units, used, .. } = &mut self.state {
            // The report may also count requests that used earlier tokens.
            let is_later = previous.is_none_or(|previous| *at > previous);
            let own = self.rate.filter(|_| is_later).map(|rate| rate.requests_in(now - *at));
            let own = own.map_or(usage.allowed, |own| own.min(usage.allowed));
            *used = used.saturating_add(own).min(*units);
            // Denials a whole interval after the assignment: Envoy has no tokens, for example because they expired.
            if usage.denied > 0 && previous.is_some_and(|previous| *at < previous) {
                *used = *units;
            }
        }
        let used_up = self.used_up_at(now, requests > 0);
        self.due = used_up.into_iter().chain(self.ends).min();
        self.is_explained(usage.allowed)
    }

    /// Returns the time at which Envoy needs more tokens. `None`: not before the next report.
    fn used_up_at(&self, now: Instant, has_requests: bool) -> Option<Instant> {
        match self.state {
            BucketState::New => Some(now),
            BucketState::Unlimited => None,
            BucketState::Tokens { at, units, used, is_scarce } => {
                let lasts = match units - used {
                    0 => has_requests.then_some(Duration::ZERO),
                    left => self.lasts(left, is_scarce),
                };
                Some(now.checked_add(lasts?)?.max(at + MIN_INTERVAL))
            }
        }
    }

    /// Returns the time after which tokens should be replaced, by the current demand.
    fn lasts(&self, tokens: u64, is_scarce: bool) -> Option<Duration> {
        let used_up = self.rate?.time_of(tokens)?;
        Some(match is_scarce {
            true => used_up.saturating_add(SCARCE_DELAY),
            false => used_up.saturating_sub(AMPLE_LEAD),
        })
    }

    /// Subtracts passed requests from the units that may be unused. Returns false if there are fewer.
    fn is_explained(&mut self, allowed: u64) -> bool {
        let Some(unused) = &mut self.unused else { return true };
        let is_explained = *unused >= allowed;
        *unused = unused.saturating_sub(allowed);
        is_explained
    }

    /// Records an assignment in a window that ends at `ends`. `is_scarce`: the bucket needs more units.
    pub(super) fn assign(&mut self, now: Instant, units: u64, is_scarce: bool, ends: Instant) {
        self.state = BucketState::Tokens { at: now, units, used: 0, is_scarce };
        self.unused = self.unused.map(|unused| unused.saturating_add(units));
        self.ends = Some(ends);
        let used_up = self.used_up_at(now, true);
        self.due = used_up.into_iter().chain([ends]).min();
    }

    /// Records that there is nothing to assign until `until`. `None`: until the next report.
    pub(super) fn deny(&mut self, now: Instant, until: Option<Instant>) {
        self.state = BucketState::Tokens { at: now, units: 0, used: 0, is_scarce: true };
        (self.ends, self.due) = (until, until);
    }

    /// Records that no limit applies, to be checked again at `until`.
    pub(super) fn allow(&mut self, until: Instant) {
        (self.state, self.unused) = (BucketState::Unlimited, None);
        (self.ends, self.due) = (Some(until), Some(until));
    }

    /// Delays the next assignment, and keeps the current one.
    pub(super) fn delay(&mut self, until: Instant) {
        (self.ends, self.due) = (Some(until), Some(until));
    }

    /// Returns true if the tokens of the current window may not be used up.
    pub(super) fn has_tokens(&self, now: Instant) -> bool {
        let has_tokens = matches!(self.state, BucketState::Tokens { units, .. } if units > 0);
        has_tokens && self.ends.is_some_and(|ends| now < ends)
    }

    /// Returns true if Envoy should forget the bucket.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_reports >= MAX_IDLE_REPORTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn usage(allowed: u64, denied: u64, seconds: u32) -> Usage {
        Usage { allowed, denied, elapsed: seconds * SECOND }
    }

    /// A bucket whose first request was denied, with 500 tokens until the end of a window of 60 s.
    fn assigned(start: Instant) -> Bucket {
        let mut bucket = Bucket::default();
        assert!(bucket.report(start, usage(0, 1, 0)));
        assert_eq!(bucket.due, Some(start), "at once");
        bucket.assign(start, 500, true, start + 60 * SECOND);
        assert_eq!(bucket.due, Some(start + 60 * SECOND), "its demand is not known");
        bucket
    }

    #[test]
    fn tokens_are_replaced_when_they_are_used_up() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        let now = start + 5 * SECOND;
        assert!(bucket.report(now, usage(400, 0, 5)));
        // 100 are left, at 80 requests a second.
        assert_eq!(bucket.due, Some(now + Duration::from_millis(1_250) + SCARCE_DELAY));
        bucket.assign(now, 480, false, start + 60 * SECOND);
        assert_eq!(bucket.due, Some(now + 6 * SECOND - AMPLE_LEAD));
        bucket.assign(now, 1, true, start + 60 * SECOND);
        assert_eq!(bucket.due, Some(now + MIN_INTERVAL), "not a message for each request");
    }

    #[test]
    fn a_report_may_cover_earlier_tokens() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        bucket.assign(start + 4 * SECOND, 200, true, start + 60 * SECOND);
        let now = start + 5 * SECOND;
        bucket.report(now, usage(500, 0, 5));
        // In the last second 100 of the 200 were used.
        assert_eq!(bucket.due, Some(now + SECOND + SCARCE_DELAY));
    }

    #[test]
    fn denials_show_that_the_tokens_are_gone() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        let mut now = start + 5 * SECOND;
        // Some may have been denied before the tokens arrived.
        bucket.report(now, usage(100, 100, 5));
        assert_eq!(bucket.due, Some(now + 10 * SECOND + SCARCE_DELAY));
        now += 5 * SECOND;
        bucket.report(now, usage(0, 100, 5));
        assert_eq!(bucket.due, Some(now));
    }

    #[test]
    fn a_bucket_without_units_is_tried_after_each_report_and_in_the_next_window() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        let ends = start + 20 * SECOND;
        bucket.deny(start + SECOND, Some(ends));
        assert_eq!(bucket.due, Some(ends));
        bucket.report(start + 5 * SECOND, usage(0, 9, 5));
        assert_eq!(bucket.due, Some(start + 5 * SECOND));
        bucket.deny(start + 5 * SECOND, Some(ends));
        bucket.report(start + 10 * SECOND, usage(0, 0, 5));
        assert_eq!(bucket.due, Some(ends), "without requests");
    }

    #[test]
    fn requests_without_an_assignment_are_detected() {
        let start = Instant::now();
        let mut bucket = Bucket::default();
        assert!(!bucket.report(start, usage(1, 0, 0)), "the first request passed");
        let mut bucket = assigned(start);
        assert!(bucket.report(start + 5 * SECOND, usage(500, 3, 5)));
        assert!(!bucket.report(start + 10 * SECOND, usage(1, 3, 5)), "more than assigned");
        // After a reconnect, tokens of the previous stream may be left.
        let mut bucket = Bucket::default();
        assert!(bucket.report(start, usage(70, 0, 4)));
        assert_eq!(bucket.rate.unwrap().requests_in(4 * SECOND), 70);
    }

    #[test]
    fn a_bucket_without_requests_is_idle_after_two_minutes() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        for report in 1..=24 {
            assert!(!bucket.is_idle());
            bucket.report(start + report * 5 * SECOND, usage(0, 0, 5));
        }
        assert!(bucket.is_idle());
        bucket.report(start + 125 * SECOND, usage(1, 0, 5));
        assert!(!bucket.is_idle());
    }

    #[test]
    fn a_bucket_without_a_limit_is_checked_again() {
        let start = Instant::now();
        let mut bucket = assigned(start);
        bucket.allow(start + 10 * SECOND);
        assert!(bucket.report(start + 5 * SECOND, usage(1_000_000, 0, 5)));
        assert_eq!(bucket.due, Some(start + 10 * SECOND));
    }
}
