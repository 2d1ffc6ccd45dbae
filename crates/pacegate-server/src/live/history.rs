use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
};

use pacegate::{PolicyName, PolicyStats, Stats};

/// The decisions of each policy in each of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Without gaps, oldest first.
    seconds: VecDeque<Second>,
    /// The totals at the last update.
    totals: HashMap<PolicyName, [u64; KINDS]>,
}

#[derive(Debug)]
struct Second {
    /// Its end, in seconds since the epoch.
    end: u64,
    /// The counts of the active policies.
    counts: Vec<(PolicyName, [u32; KINDS])>,
}

/// One policy, second by second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allowed: Vec<u32>,
    pub(crate) denied: Vec<u32>,
    pub(crate) shadow_denied: Vec<u32>,
    /// The sums of the costs of the allowed requests.
    pub(crate) allowed_units: Vec<u32>,
    /// The sums of the costs of the denied requests, those in shadow mode not included.
    pub(crate) denied_units: Vec<u32>,
}

/// The numbers that are kept for each policy and second: the fields of [`Counts`].
const KINDS: usize = 5;

impl History {
    /// The number of seconds that are kept.
    pub(crate) const SECONDS: usize = 300;

    /// Seconds that the clock may go back before the history is cleared.
    const SMALL_STEP: u64 = 5;

    /// The number of policies that are kept for each second: those with the most decisions.
    const POLICIES: usize = 256;

    /// Records the decisions up to the end of a second. Missed seconds stay empty; all new decisions go to this second.
    /// If the clock has gone back a little, decisions are added to the latest second until the clock passes it.
    pub(crate) fn push(&mut self, end: u64, stats: &Stats) {
        let mut counts = self.since_last(stats);
        cut(&mut counts);
        match self.seconds.back_mut() {
            Some(last) if end <= last.end && last.end - end <= Self::SMALL_STEP => {
                return last.add(&counts);
            }
            Some(last) if end > last.end && end - last.end <= Self::SECONDS as u64 => {
                let missed = last.end + 1..end;
                self.seconds.extend(missed.map(|end| Second { end, counts: Vec::new() }));
            }
            _ => self.seconds.clear(),
        }
        let mut second = Second { end, counts: Vec::new() };
        second.add(&counts);
        self.seconds.push_back(second);
        let over = self.seconds.len().saturating_sub(Self::SECONDS);
        self.seconds.drain(..over);
    }

    /// Returns the end of the first second after `since`, and the number of seconds after it.
    pub(crate) fn range(&self, since: u64) -> (u64, usize) {
        let first = self.after(since).next().map(|second| second.end);
        let next = self.seconds.back().map_or(since, |last| last.end).saturating_add(1);
        (first.unwrap_or(next), self.after(since).count())
    }

    /// Returns the decisions of these policies in the seconds after `since`.
    pub(crate) fn counts(&self, since: u64, policies: &[PolicyName]) -> Vec<Counts> {
        let length = self.after(since).count();
        let mut all = vec![Counts::zeros(length); policies.len()];
        let places: HashMap<_, _> = policies.iter().zip(0..).collect();
        for (place, second) in self.after(since).enumerate() {
            for (policy, counts) in &second.counts {
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

    fn after(&self, since: u64) -> impl Iterator<Item = &Second> {
        self.seconds.iter().filter(move |second| second.end > since)
    }

    fn since_last(&mut self, stats: &Stats) -> Vec<(PolicyName, [u32; KINDS])> {
        let mut totals = HashMap::with_capacity(stats.policies.len() + 1);
        let mut counts = Vec::new();
        for policy in stats.policies.iter().chain([&stats.inline]) {
            let PolicyStats { allowed, denied, shadow_denied, .. } = *policy;
            let now = [allowed, denied, shadow_denied, policy.allowed_units, policy.denied_units];
            let policy = policy.policy;
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

impl Counts {
    fn zeros(length: usize) -> Self {
        let mut counts = Self::default();
        counts.fields().into_iter().for_each(|field| field.resize(length, 0));
        counts
    }

    fn fields(&mut self) -> [&mut Vec<u32>; KINDS] {
        let Self { allowed, denied, shadow_denied, allowed_units, denied_units } = self;
        [allowed, denied, shadow_denied, allowed_units, denied_units]
    }
}

impl Second {
    fn add(&mut self, counts: &[(PolicyName, [u32; KINDS])]) {
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
    use pacegate::{Limit, Limiter, Policy, PolicySet, Request};

    use super::*;

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
        history.push(100, &limiter.stats());
        check(&limiter, 0, 4);
        check(&limiter, 1, 1);
        history.push(101, &limiter.stats());
        // Two seconds were missed.
        check(&limiter, 0, 1);
        history.push(104, &limiter.stats());
        assert_eq!(history.range(0), (100, 5));
        let counts = history.counts(0, &names(&limiter));
        assert_eq!(counts[0].allowed, [1, 1, 0, 0, 0]);
        assert_eq!(counts[0].denied, [0, 3, 0, 0, 1]);
        assert_eq!(counts[1].allowed, [0, 1, 0, 0, 0]);
        assert_eq!(counts[1].shadow_denied, [0; 5]);
        assert_eq!(history.range(101), (102, 3));
        assert_eq!(history.counts(101, &names(&limiter))[0].denied, [0, 0, 1]);
        assert_eq!(history.range(104), (105, 0));
        assert_eq!(history.counts(104, &names(&limiter))[0].denied, [0; 0]);
    }

    #[test]
    fn old_seconds_are_dropped() {
        let (limiter, mut history) = (limiter(1), History::default());
        for second in 0..1_000 {
            check(&limiter, 0, 1);
            history.push(second, &limiter.stats());
        }
        assert_eq!(history.range(0), (700, History::SECONDS));
        assert_eq!(history.counts(0, &names(&limiter))[0].denied, [1; History::SECONDS]);
        // A large jump of the clock clears the history.
        for second in [5_000, 4_994, 3] {
            history.push(second, &limiter.stats());
            assert_eq!(history.range(0), (second, 1));
        }
    }

    #[test]
    fn a_clock_that_goes_back_a_little_adds_to_the_last_second() {
        let (limiter, mut history) = (limiter(1), History::default());
        for second in [50, 50, 45, 51] {
            check(&limiter, 0, 1);
            history.push(second, &limiter.stats());
        }
        let counts = history.counts(0, &names(&limiter));
        assert_eq!(history.range(0), (50, 2));
        assert_eq!((&*counts[0].allowed, &*counts[0].denied), (&[2, 0][..], &[1, 1][..]));
    }

    #[test]
    fn a_policy_that_is_there_again_begins_at_nothing() {
        let (first, mut history) = (limiter(2), History::default());
        check(&first, 1, 2);
        history.push(1, &first.stats());
        let one = PolicySet::new([first.policies().policies()[0].clone()]).unwrap();
        let second = first.with_policies(one);
        history.push(2, &second.stats());
        let third = second.with_policies(first.policies().clone());
        check(&third, 1, 1);
        history.push(3, &third.stats());
        let counts = history.counts(0, &names(&third));
        assert_eq!((&*counts[1].allowed, &*counts[1].denied), (&[2, 0, 0][..], &[0, 0, 1][..]));
    }

    #[test]
    fn of_very_many_policies_the_busiest_are_remembered() {
        let (limiter, mut history) = (limiter(History::POLICIES + 10), History::default());
        for policy in 0..History::POLICIES + 10 {
            check(&limiter, policy, if policy < 10 { 1 } else { 2 });
        }
        history.push(1, &limiter.stats());
        let counts = history.counts(0, &names(&limiter));
        let remembered = counts.iter().filter(|counts| counts.allowed == [2]).count();
        assert_eq!(remembered, History::POLICIES);
        assert!(counts[..10].iter().all(|counts| counts.allowed == [0]));
    }
}
