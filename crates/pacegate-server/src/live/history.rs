use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    iter::repeat,
};

use pacegate::{PolicyName, PolicyStats, Stats};
use schemars::JsonSchema;
use serde::Serialize;

use crate::metrics::Latency;

/// The decisions of each policy, and the latency of each listener, at several resolutions.
#[derive(Debug, Default)]
pub(crate) struct History {
    spans: [Span; Resolution::ALL.len()],
    /// The totals at the last update.
    totals: HashMap<PolicyName, [u64; KINDS]>,
    /// The latency of each listener at the last update.
    latencies: Vec<Latency>,
}

/// The length of a sample, and so the time that the history goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Samples of a second, for five minutes.
    #[default]
    Second,
    /// Samples of 15 seconds, for an hour.
    QuarterMinute,
    /// Samples of five minutes, for a day.
    FiveMinutes,
}

/// The samples of one resolution: without gaps, oldest first. The last one may not have ended yet.
#[derive(Debug, Default)]
pub(crate) struct Span(VecDeque<Sample>);

#[derive(Debug, Default)]
struct Sample {
    /// Its end, in seconds since the epoch.
    end: u64,
    /// The counts of the active policies.
    counts: Vec<(PolicyName, [u32; KINDS])>,
    /// The latency of each listener. May be shorter: listeners without an entry made no decisions.
    latencies: Vec<Latency>,
}

/// The decisions of one policy in each sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "CountsBySample")]
pub(crate) struct Counts {
    pub(crate) allowed: Vec<u32>,
    pub(crate) denied: Vec<u32>,
    pub(crate) shadow_denied: Vec<u32>,
    /// Total cost of the allowed requests.
    pub(crate) allowed_units: Vec<u32>,
    /// Total cost of the denied requests.
    pub(crate) denied_units: Vec<u32>,
    /// Total cost of the requests that shadow mode allowed.
    pub(crate) shadow_denied_units: Vec<u32>,
    /// Requests that a failure mode decided; they are included in the other counts.
    pub(crate) degraded: Vec<u32>,
}

/// The number of fields of [`Counts`].
const KINDS: usize = 7;

impl Resolution {
    pub(crate) const ALL: [Self; 3] = [Self::Second, Self::QuarterMinute, Self::FiveMinutes];

    /// Returns the seconds of a sample.
    pub(crate) const fn step(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::QuarterMinute => 15,
            Self::FiveMinutes => 300,
        }
    }

    /// Returns the number of samples that are kept.
    pub(crate) const fn samples(self) -> usize {
        match self {
            Self::Second => 300,
            Self::QuarterMinute => 240,
            Self::FiveMinutes => 288,
        }
    }
}

impl History {
    /// The number of policies that are kept for each sample: those with the most decisions.
    const POLICIES: usize = 256;

    /// Records the decisions up to the end of a second, and the total latency of each listener. Missed seconds stay
    /// empty; all new decisions go to this second.
    pub(crate) fn push(&mut self, end: u64, stats: &Stats, latencies: Vec<Latency>) {
        let mut counts = self.since_last(stats);
        cut(&mut counts);
        let before = std::mem::replace(&mut self.latencies, latencies);
        let before = before.into_iter().chain(repeat(Latency::default()));
        let new = self.latencies.iter().zip(before).map(|(now, before)| now.since(&before));
        let new: Vec<_> = new.collect();
        for (span, resolution) in self.spans.iter_mut().zip(Resolution::ALL) {
            span.push(resolution, end, &counts, &new);
        }
    }

    /// Returns the samples of one resolution.
    pub(crate) fn span(&self, resolution: Resolution) -> &Span {
        &self.spans[resolution as usize]
    }

    /// Returns the latency of a listener in the last minute.
    pub(crate) fn last_minute(&self, listener: usize) -> Latency {
        let seconds = self.span(Resolution::Second).0.iter().rev().take(60);
        seconds.filter_map(|second| second.latencies.get(listener)).sum()
    }

    fn since_last(&mut self, stats: &Stats) -> Vec<(PolicyName, [u32; KINDS])> {
        let mut totals = HashMap::with_capacity(stats.policies.len() + 1);
        let mut counts = Vec::new();
        for stats in stats.policies.iter().chain([&stats.inline]) {
            let &PolicyStats { policy, allowed, denied, shadow_denied, .. } = stats;
            let &PolicyStats { allowed_units, denied_units, shadow_denied_units, degraded, .. } =
                stats;
            let now = [
                allowed,
                denied,
                shadow_denied,
                allowed_units,
                denied_units,
                shadow_denied_units,
                degraded,
            ];
            if now == [0; KINDS] {
                continue;
            }
            let before = self.totals.get(&policy).copied().unwrap_or_default();
            let mut new = [0; KINDS];
            for ((new, now), before) in new.iter_mut().zip(now).zip(before) {
                // A policy that was removed and added again starts at 0.
                *new = u32::try_from(now.checked_sub(before).unwrap_or(now)).unwrap_or(u32::MAX);
            }
            totals.insert(policy, now);
            if new != [0; KINDS] {
                counts.push((policy, new));
            }
        }
        self.totals = totals;
        counts
    }
}

impl Span {
    /// Seconds that the clock may go back before the samples are cleared.
    const SMALL_STEP: u64 = 5;

    /// Adds the new decisions up to the end of a second. If the clock has gone back a little, they are added to the
    /// latest sample until the clock passes it.
    fn push(
        &mut self,
        resolution: Resolution,
        second: u64,
        counts: &[(PolicyName, [u32; KINDS])],
        latencies: &[Latency],
    ) {
        let (step, most) = (resolution.step(), resolution.samples());
        let end = second.div_ceil(step).saturating_mul(step);
        match self.0.back_mut() {
            Some(last) if end <= last.end && last.end - end <= Self::SMALL_STEP.max(step) => {
                return last.add(counts, latencies);
            }
            Some(last) if end > last.end && (end - last.end) / step <= most as u64 => {
                let missed = (last.end / step + 1..end / step).map(|place| place * step);
                self.0.extend(missed.map(|end| Sample { end, ..Sample::default() }));
            }
            _ => self.0.clear(),
        }
        let mut sample = Sample { end, ..Sample::default() };
        sample.add(counts, latencies);
        self.0.push_back(sample);
        let over = self.0.len().saturating_sub(most);
        self.0.drain(..over);
    }

    /// Returns the latency of all listeners in each sample after `since`.
    pub(crate) fn latencies(&self, since: u64) -> impl Iterator<Item = Latency> {
        self.after(since).map(|sample| sample.latencies.iter().sum())
    }

    /// Returns the end of the first sample after `since`, and the number of samples after it.
    pub(crate) fn range(&self, since: u64) -> (u64, usize) {
        let first = self.after(since).next().map(|sample| sample.end);
        let next = self.0.back().map_or(since, |last| last.end).saturating_add(1);
        (first.unwrap_or(next), self.after(since).count())
    }

    /// Returns the decisions of these policies in the samples after `since`.
    pub(crate) fn counts(&self, since: u64, policies: &[PolicyName]) -> Vec<Counts> {
        let length = self.after(since).count();
        let mut all = vec![Counts::zeros(length); policies.len()];
        let places: HashMap<_, _> = policies.iter().zip(0..).collect();
        for (place, sample) in self.after(since).enumerate() {
            for (policy, counts) in &sample.counts {
                if let Some(own) =
                    places.get(policy).and_then(|&policy| all.get_mut::<usize>(policy))
                {
                    own.fields()
                        .into_iter()
                        .zip(counts)
                        .for_each(|(own, count)| own[place] = *count);
                }
            }
        }
        all
    }

    fn after(&self, since: u64) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.end > since)
    }
}

impl Counts {
    fn zeros(length: usize) -> Self {
        let mut counts = Self::default();
        counts.fields().into_iter().for_each(|field| field.resize(length, 0));
        counts
    }

    fn fields(&mut self) -> [&mut Vec<u32>; KINDS] {
        let Self {
            allowed,
            denied,
            shadow_denied,
            allowed_units,
            denied_units,
            shadow_denied_units,
            degraded,
        } = self;
        [allowed, denied, shadow_denied, allowed_units, denied_units, shadow_denied_units, degraded]
    }
}

impl Sample {
    fn add(&mut self, counts: &[(PolicyName, [u32; KINDS])], latencies: &[Latency]) {
        for &(policy, new) in counts {
            match self.counts.iter_mut().find(|(other, _)| *other == policy) {
                Some((_, sum)) => {
                    sum.iter_mut().zip(new).for_each(|(sum, new)| *sum = sum.saturating_add(new));
                }
                None => self.counts.push((policy, new)),
            }
        }
        cut(&mut self.counts);
        self.counts.shrink_to_fit();
        self.latencies.resize(self.latencies.len().max(latencies.len()), Latency::default());
        self.latencies.iter_mut().zip(latencies).for_each(|(sum, new)| *sum += *new);
    }
}

/// Keeps the policies with the most decisions.
fn cut(counts: &mut Vec<(PolicyName, [u32; KINDS])>) {
    if counts.len() > History::POLICIES {
        let all =
            |counts: &[u32; KINDS]| counts[..3].iter().map(|&count| u64::from(count)).sum::<u64>();
        let busiest =
            |&(policy, ref counts): &(PolicyName, [u32; KINDS])| (Reverse(all(counts)), policy);
        counts.select_nth_unstable_by_key(History::POLICIES, busiest);
        counts.truncate(History::POLICIES);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pacegate::{Limit, Limiter, Policy, PolicySet, Request};

    use super::*;
    use crate::metrics::ListenerMetrics;

    fn limiter(policies: usize) -> Limiter {
        let policy = |n: usize| {
            let name = format!("p{n}");
            Policy::new(name, [Limit::per_hour(2)]).in_domain(format!("d{n}"))
        };
        let policies = PolicySet::new((0..policies).map(policy)).unwrap();
        Limiter::builder().policies(policies).build().unwrap()
    }

    fn check(limiter: &Limiter, policy: usize, times: usize) {
        for _ in 0..times {
            let domain = format!("d{policy}");
            let _ = limiter.check_request(&Request::new().in_domain(&domain)).unwrap();
        }
    }

    fn names(limiter: &Limiter) -> Vec<PolicyName> {
        limiter.policies().policies().iter().map(|policy| policy.name).collect()
    }

    #[test]
    fn each_second_has_its_new_decisions() {
        let (limiter, mut history) = (limiter(2), History::default());
        check(&limiter, 0, 1);
        history.push(100, &limiter.stats(), Vec::new());
        check(&limiter, 0, 4);
        check(&limiter, 1, 1);
        history.push(101, &limiter.stats(), Vec::new());
        // Two seconds were missed.
        check(&limiter, 0, 1);
        history.push(104, &limiter.stats(), Vec::new());
        assert_eq!(history.span(Resolution::Second).range(0), (100, 5));
        let counts = history.span(Resolution::Second).counts(0, &names(&limiter));
        assert_eq!(counts[0].allowed, [1, 1, 0, 0, 0]);
        assert_eq!(counts[0].denied, [0, 3, 0, 0, 1]);
        assert_eq!(counts[1].allowed, [0, 1, 0, 0, 0]);
        assert_eq!(counts[1].shadow_denied, [0; 5]);
        assert_eq!(history.span(Resolution::Second).range(101), (102, 3));
        assert_eq!(
            history.span(Resolution::Second).counts(101, &names(&limiter))[0].denied,
            [0, 0, 1]
        );
        assert_eq!(history.span(Resolution::Second).range(104), (105, 0));
        assert_eq!(
            history.span(Resolution::Second).counts(104, &names(&limiter))[0].denied,
            [0; 0]
        );
    }

    #[test]
    fn old_seconds_are_dropped() {
        let (limiter, mut history) = (limiter(1), History::default());
        for second in 0..1_000 {
            check(&limiter, 0, 1);
            history.push(second, &limiter.stats(), Vec::new());
        }
        assert_eq!(history.span(Resolution::Second).range(0), (700, Resolution::Second.samples()));
        assert_eq!(
            history.span(Resolution::Second).counts(0, &names(&limiter))[0].denied,
            [1; 300]
        );
        // A large jump of the clock clears the history.
        for second in [5_000, 4_994, 3] {
            history.push(second, &limiter.stats(), Vec::new());
            assert_eq!(history.span(Resolution::Second).range(0), (second, 1));
        }
    }

    #[test]
    fn a_day_is_kept_in_longer_samples() {
        let (limiter, mut history) = (limiter(1), History::default());
        let day = 86_400;
        for second in (1..=2 * day).step_by(60) {
            check(&limiter, 0, 1);
            history.push(second, &limiter.stats(), Vec::new());
        }
        for (resolution, length, denied) in
            [(Resolution::QuarterMinute, 3_600, [1, 0]), (Resolution::FiveMinutes, day, [5, 5])]
        {
            let span = history.span(resolution);
            let (from, samples) = span.range(0);
            let step = resolution.step();
            assert_eq!(samples, resolution.samples());
            assert_eq!(samples as u64 * step, length);
            assert_eq!(from % step, 0);
            let counts = span.counts(0, &names(&limiter));
            assert_eq!(counts[0].denied[samples - 5..][..1], denied[..1]);
            assert_eq!(counts[0].denied[samples - 4..][..1], denied[1..]);
        }
    }

    #[test]
    fn a_clock_that_goes_back_a_little_adds_to_the_last_second() {
        let (limiter, mut history) = (limiter(1), History::default());
        for second in [50, 50, 45, 51] {
            check(&limiter, 0, 1);
            history.push(second, &limiter.stats(), Vec::new());
        }
        let counts = history.span(Resolution::Second).counts(0, &names(&limiter));
        assert_eq!(history.span(Resolution::Second).range(0), (50, 2));
        assert_eq!((&*counts[0].allowed, &*counts[0].denied), (&[2, 0][..], &[1, 1][..]));
    }

    #[test]
    fn the_counts_of_a_policy_that_was_added_again_start_at_zero() {
        let (first, mut history) = (limiter(2), History::default());
        check(&first, 1, 2);
        history.push(1, &first.stats(), Vec::new());
        let one = PolicySet::new([first.policies().policies()[0].clone()]).unwrap();
        let second = first.with_policies(one);
        history.push(2, &second.stats(), Vec::new());
        let third = second.with_policies(first.policies().clone());
        check(&third, 1, 1);
        history.push(3, &third.stats(), Vec::new());
        let counts = history.span(Resolution::Second).counts(0, &names(&third));
        assert_eq!((&*counts[1].allowed, &*counts[1].denied), (&[2, 0, 0][..], &[0, 0, 1][..]));
    }

    #[test]
    fn only_the_busiest_policies_are_kept() {
        let (limiter, mut history) = (limiter(History::POLICIES + 10), History::default());
        for policy in 0..History::POLICIES + 10 {
            check(&limiter, policy, if policy < 10 { 1 } else { 2 });
        }
        history.push(1, &limiter.stats(), Vec::new());
        let counts = history.span(Resolution::Second).counts(0, &names(&limiter));
        let remembered = counts.iter().filter(|counts| counts.allowed == [2]).count();
        assert_eq!(remembered, History::POLICIES);
        assert!(counts[..10].iter().all(|counts| counts.allowed == [0]));
    }

    #[test]
    fn each_second_has_the_latency_of_its_decisions() {
        let (limiter, mut history) = (limiter(1), History::default());
        let listener = ListenerMetrics::new("http", &["200"]);
        let mut push = |second: u64, micros: &[u64]| {
            for &micros in micros {
                listener.count(0, Duration::from_micros(micros));
            }
            history.push(second, &limiter.stats(), vec![listener.latency()]);
        };
        push(10, &[20, 20, 300]);
        push(12, &[90]);
        push(70, &[5]);
        let micros = |latency: Latency| latency.percentile(50).map(|time| time.as_micros());
        let seconds: Vec<_> = history.span(Resolution::Second).latencies(0).map(micros).collect();
        assert_eq!(seconds[..4], [Some(25), None, Some(100), None]);
        assert_eq!((seconds.len(), micros(history.last_minute(0))), (61, Some(25)));
        assert_eq!(history.last_minute(0).count(), 2);
        assert_eq!(history.last_minute(1).count(), 0);
    }
}
