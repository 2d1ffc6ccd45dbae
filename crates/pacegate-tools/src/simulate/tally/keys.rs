//! Statistics per key, in bounded memory.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use pacegate::{KeyRef, algorithm::State};
use smallvec::SmallVec;

use super::{
    distinct::Distinct,
    window::{Sums, Window},
};

/// An encoded key: its parts, each preceded by its length.
pub(crate) type KeyText = SmallVec<[u8; 24]>;

/// The keys of a policy. If there are too many, inactive keys are removed, except the most notable ones.
#[derive(Debug)]
pub struct KeyTallies {
    keys: HashMap<KeyText, KeyTally, RandomState>,
    /// Number of keys from which on inactive keys are removed.
    most: usize,
    /// Time after the last request from which on the key's usage no longer matters, in microseconds.
    rest: u64,
    /// Number of removed keys.
    pub forgotten: u64,
    all: Distinct,
    touched: Distinct,
}

/// The number of requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OutcomeCounts {
    pub allowed: u64,
    pub denied: u64,
    pub shadow_denied: u64,
    /// Requests that this policy would have allowed and another one denied.
    #[serde(skip)]
    pub elsewhere: u64,
}

/// Statistics of one key.
#[derive(Clone, Debug)]
pub struct KeyTally {
    pub counts: OutcomeCounts,
    /// Time of the last request, and whether it was admitted.
    seen: u64,
    last_admitted: bool,
    /// True if the peaks refer to the base limit. Requests under an override count only while there are no
    /// others.
    plain: bool,
    /// The most requests within any one second.
    pub peak_second: u32,
    /// The most requests within any one period of its limit.
    pub peak_asked: u32,
    /// The most admitted requests within any one period of its limit.
    pub peak_admitted: u32,
    /// The last fixed window in which more than the amount was admitted within one period.
    burst: u64,
    /// State of the algorithm, used by the fast path for a single limit.
    state: State,
    /// Allocated for keys with more than one request.
    windows: Option<Box<RecentRequests>>,
}

/// The recent requests of one key.
#[derive(Clone, Debug)]
struct RecentRequests {
    second: Window,
    /// One period of the limit.
    period: Window,
}

/// Outcome of one request under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Allowed,
    Denied,
    ShadowDenied,
    /// This policy would have allowed it and another one denied it.
    Elsewhere,
}

/// The number of keys and the number of keys with denials.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct KeyCounts {
    pub seen: u64,
    pub touched: u64,
    /// False if the numbers are estimates.
    pub exact: bool,
}

/// Number of inactive keys to keep, by each measure.
const STANDING_OUT: usize = 10_000;

impl KeyTallies {
    pub fn new(most: usize, rest: u64) -> Self {
        let most = most.max(4 * STANDING_OUT);
        let (all, touched) = (Distinct::default(), Distinct::default());
        Self { keys: HashMap::default(), most, rest, forgotten: 0, all, touched }
    }

    /// Decides a request with the key's state and counts the outcome. Returns the outcome, and the number of
    /// requests and admissions in the period that ends now; zeros if the peaks refer to a different limit.
    /// `limit` is the period and whether it is the base limit.
    pub(super) fn count(
        &mut self,
        key: &[u8],
        at: u64,
        limit: (u64, bool),
        decide: impl FnOnce(&mut State) -> Event,
    ) -> (Event, Sums) {
        if let Some(tally) = self.keys.get_mut(key) {
            let first = !tally.is_touched();
            let event = decide(&mut tally.state);
            let sums = tally.count(at, limit, event);
            if first && tally.is_touched() {
                self.touched.add(key);
            }
            return (event, sums);
        }
        if self.keys.len() >= self.most {
            self.forget(at);
        }
        self.all.add(key);
        let tally = self.keys.entry(KeyText::from_slice(key)).or_default();
        let event = decide(&mut tally.state);
        let sums = tally.count(at, limit, event);
        if tally.is_touched() {
            self.touched.add(key);
        }
        (event, sums)
    }

    /// Returns true for the first burst that ends in this fixed window.
    pub(super) fn is_new_burst(&mut self, key: &[u8], window: u64) -> bool {
        let known = self.keys.get_mut(key).map(|tally| std::mem::replace(&mut tally.burst, window));
        known != Some(window)
    }

    pub fn counts(&self) -> KeyCounts {
        if self.forgotten > 0 {
            let (seen, touched) = (self.all.estimate(), self.touched.estimate());
            return KeyCounts { seen, touched: touched.min(seen), exact: false };
        }
        let touched = self.keys.values().filter(|tally| tally.is_touched()).count();
        KeyCounts { seen: self.keys.len() as u64, touched: touched as u64, exact: true }
    }

    pub fn get(&self, key: &[u8]) -> Option<&KeyTally> {
        self.keys.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&KeyText, &KeyTally)> {
        self.keys.iter()
    }

    /// Returns the keys with the highest nonzero values of a measure; ties are in the order of their text.
    pub fn top(
        &self,
        count: usize,
        measure: impl Fn(&KeyTally) -> u64,
    ) -> Vec<(&KeyText, &KeyTally)> {
        let mut keys: Vec<_> = self.keys.iter().filter(|(_, tally)| measure(tally) > 0).collect();
        let order = |(key, tally): &(&KeyText, &KeyTally)| {
            (std::cmp::Reverse(measure(tally)), KeyText::clone(key))
        };
        if keys.len() > count {
            keys.select_nth_unstable_by_key(count, order);
            keys.truncate(count);
        }
        keys.sort_unstable_by_key(order);
        keys
    }

    /// Removes keys whose usage no longer matters, except the most notable ones.
    fn forget(&mut self, now: u64) {
        let measures = [OutcomeCounts::all_denied, OutcomeCounts::requests];
        let bars = measures.map(|measure| {
            let mut values: Vec<u64> =
                self.keys.values().map(|tally| measure(&tally.counts)).collect();
            let place = values.len().saturating_sub(STANDING_OUT);
            *values.select_nth_unstable(place).1
        });
        let before = self.keys.len();
        self.keys.retain(|_, tally| {
            let live = now.saturating_sub(tally.seen) < self.rest;
            let counts = tally.counts;
            live || counts.all_denied() > bars[0] || counts.requests() > bars[1]
        });
        self.forgotten += (before - self.keys.len()) as u64;
        // If all remaining keys are active, double the capacity so that this does not run on every request.
        self.most = self.most.max(2 * self.keys.len());
    }
}

impl Default for KeyTally {
    fn default() -> Self {
        Self {
            counts: OutcomeCounts::default(),
            seen: 0,
            last_admitted: false,
            plain: false,
            peak_second: 0,
            peak_asked: 0,
            peak_admitted: 0,
            burst: 0,
            state: State::EMPTY,
            windows: None,
        }
    }
}

impl OutcomeCounts {
    pub(super) fn add(&mut self, event: Event) {
        *match event {
            Event::Allowed => &mut self.allowed,
            Event::Denied => &mut self.denied,
            Event::ShadowDenied => &mut self.shadow_denied,
            Event::Elsewhere => &mut self.elsewhere,
        } += 1;
    }

    pub fn requests(&self) -> u64 {
        self.allowed + self.denied + self.shadow_denied + self.elsewhere
    }

    /// Returns the number of requests that were denied or, in shadow mode, would have been.
    pub fn all_denied(&self) -> u64 {
        self.denied + self.shadow_denied
    }
}

impl KeyTally {
    fn is_touched(&self) -> bool {
        self.counts.all_denied() > 0
    }

    fn count(&mut self, at: u64, (period, plain): (u64, bool), event: Event) -> Sums {
        let is_first = self.counts.requests() == 0;
        let admitted = event == Event::Allowed;
        let before = (self.seen, self.last_admitted);
        (self.seen, self.last_admitted) = (at, admitted);
        self.counts.add(event);
        if is_first {
            self.plain = plain;
            (self.peak_second, self.peak_asked, self.peak_admitted) = (1, 1, admitted.into());
            return Sums { asked: 1, admitted: admitted.into() };
        }
        let windows =
            self.windows.get_or_insert_with(|| Box::new(RecentRequests::new(period, before)));
        self.peak_second = self.peak_second.max(windows.second.add(at, admitted).asked);
        if self.plain && !plain {
            return Sums::default();
        }
        if self.plain != plain {
            windows.period = Window::new(period);
            (self.plain, self.peak_asked, self.peak_admitted) = (plain, 0, 0);
        }
        let sums = windows.period.add(at, admitted);
        self.peak_asked = self.peak_asked.max(sums.asked);
        self.peak_admitted = self.peak_admitted.max(sums.admitted);
        sums
    }
}

impl RecentRequests {
    /// Creates windows that contain one event.
    fn new(period: u64, (at, admitted): (u64, bool)) -> Self {
        let mut windows = Self { second: Window::new(1_000_000), period: Window::new(period) };
        windows.second.add(at, admitted);
        windows.period.add(at, admitted);
        windows
    }
}

/// Encodes a key into `text`, replacing its content. Different keys have different encodings.
pub(super) fn encode(key: KeyRef<'_>, text: &mut Vec<u8>) {
    text.clear();
    for part in key.parts() {
        let length = part.map_or(u32::MAX, |part| u32::try_from(part.len()).unwrap_or(u32::MAX));
        text.extend_from_slice(&length.to_le_bytes());
        text.extend_from_slice(part.unwrap_or_default());
    }
}

/// Maximum length of a displayed key, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Formats a key for display: its parts, with control characters escaped; long keys are truncated.
pub(crate) fn shown(text: &[u8]) -> String {
    let (mut rest, mut shown) = (text, String::new());
    while let Some((length, tail)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length);
        let part = tail.split_at_checked(length as usize);
        rest = part.map_or(tail, |(_, tail)| tail);
        if !shown.is_empty() {
            shown.push_str(", ");
        }
        match part {
            Some((part, _)) => shown.push_str(&KeyRef::new(part).to_string()),
            None => shown.push_str("(absent)"),
        }
    }
    if shown.is_empty() {
        return "(all clients)".to_owned();
    }
    match shown.char_indices().nth(MAX_SHOWN_CHARS) {
        Some(_) => shown.chars().take(MAX_SHOWN_CHARS - 1).chain(['…']).collect(),
        None => shown,
    }
}
