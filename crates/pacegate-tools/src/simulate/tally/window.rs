//! Counts events within a sliding period.

use std::collections::VecDeque;

/// Requests and admissions in the period that ends with the last event, wherever it begins.
///
/// Exact for up to a million different times within one period. If there are more, neighbours are merged at the
/// earlier time, so the sums can be too low by at most the events of one such pair.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// In microseconds.
    period: u64,
    /// The times within the period, oldest first, with their events.
    times: VecDeque<(u64, Sums)>,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) asked: u32,
    pub(crate) admitted: u32,
}

/// Maximum number of times that are kept.
const MAX_TIMES: usize = 1 << 20;
/// Capacity above which an empty window returns its memory.
const MAX_IDLE_TIMES: usize = 64;

impl Window {
    pub(crate) fn new(period: u64) -> Self {
        Self { period, times: VecDeque::new(), sums: Sums::default() }
    }

    /// Counts an event, which must not be earlier than the last one, and returns the sums including it.
    #[inline]
    pub(crate) fn add(&mut self, at: u64, admitted: bool) -> Sums {
        while let Some(&(first, gone)) = self.times.front()
            && at.saturating_sub(first) >= self.period
        {
            self.times.pop_front();
            self.sums.asked = self.sums.asked.saturating_sub(gone.asked);
            self.sums.admitted = self.sums.admitted.saturating_sub(gone.admitted);
        }
        if self.times.is_empty() && self.times.capacity() > MAX_IDLE_TIMES {
            self.times = VecDeque::new();
        }
        let event = Sums { asked: 1, admitted: u32::from(admitted) };
        match self.times.back_mut() {
            Some((last, sums)) if *last == at => sums.add(event),
            _ => {
                if self.times.len() >= MAX_TIMES {
                    self.merge_neighbours();
                }
                self.times.push_back((at, event));
            }
        }
        self.sums.add(event);
        self.sums
    }

    /// Returns the time of the last event.
    pub(crate) fn last(&self) -> Option<u64> {
        self.times.back().map(|(at, _)| *at)
    }

    fn merge_neighbours(&mut self) {
        let mut times = VecDeque::with_capacity(self.times.len());
        let mut rest = self.times.drain(..);
        while let Some((at, mut sums)) = rest.next() {
            if let Some((_, next)) = rest.next() {
                sums.add(next);
            }
            times.push_back((at, sums));
        }
        drop(rest);
        self.times = times;
    }
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.asked = self.asked.saturating_add(other.asked);
        self.admitted = self.admitted.saturating_add(other.admitted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns times with pauses and with several events at once, and whether each event is admitted.
    fn events(count: usize) -> Vec<(u64, bool)> {
        let (mut random, mut at) = (7_u64, 0);
        let mut event = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            at += match random >> 60 {
                0 => 30_000_000,
                1..4 => 0,
                _ => random >> 44,
            };
            (at, random >> 63 == 0)
        };
        (0..count).map(|_| event()).collect()
    }

    fn within(events: &[(u64, bool)], period: u64) -> Sums {
        let now = events[events.len() - 1].0;
        let recent = events.iter().rev().take_while(|(then, _)| now - then < period);
        recent.fold(Sums::default(), |sums, (_, admitted)| Sums {
            asked: sums.asked + 1,
            admitted: sums.admitted + u32::from(*admitted),
        })
    }

    #[test]
    fn sums_are_exact() {
        let events = events(20_000);
        let mut window = Window::new(60_000_000);
        for (place, (at, admitted)) in events.iter().enumerate() {
            let sums = window.add(*at, *admitted);
            assert_eq!(sums, within(&events[..=place], 60_000_000));
        }
    }

    #[test]
    fn merged_times_are_never_too_high_and_keep_all_events() {
        let events = events(1_000);
        let mut window = Window::new(60_000_000);
        for (place, (at, admitted)) in events.iter().enumerate() {
            let sums = window.add(*at, *admitted);
            let exact = within(&events[..=place], 60_000_000);
            assert!(sums.asked <= exact.asked && sums.admitted <= exact.admitted);
            if place % 10 == 0 {
                window.merge_neighbours();
                let kept: u32 = window.times.iter().map(|(_, sums)| sums.asked).sum();
                assert_eq!(kept, window.sums.asked);
            }
        }
    }
}
