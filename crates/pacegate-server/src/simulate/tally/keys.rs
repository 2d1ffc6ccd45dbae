//! What each key was allowed and denied, in bounded memory.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use pacegate::{KeyRef, algorithm::State};
use smallvec::SmallVec;

use super::{
    distinct::Distinct,
    window::{Sums, Window},
};

/// A key as it is kept: its parts, each after its length.
pub(crate) type KeyText = SmallVec<[u8; 24]>;

/// All keys of a policy. Those that are at rest are forgotten when there are too many, but for those that stand out.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: HashMap<KeyText, KeyTally, RandomState>,
    /// Keys are forgotten from here on.
    most: usize,
    /// After so long nothing that a key has used matters any more.
    rest: u64,
    /// Keys that were forgotten.
    pub(crate) forgotten: u64,
    all: Distinct,
    touched: Distinct,
}

/// What became of one key.
#[derive(Clone, Debug)]
pub(crate) struct KeyTally {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    /// Requests that another policy denied, while this one had room.
    pub(crate) elsewhere: u64,
    /// When it asked last.
    seen: u64,
    /// When it last asked for something that counts for the peaks, and whether it was admitted.
    last: u64,
    last_admitted: bool,
    /// Whether the peaks are of the plain limit. Requests under an override count only as long as there are no others.
    plain: bool,
    second: u64,
    in_second: u32,
    /// The most that it asked for within a second by the clock.
    pub(crate) peak_second: u32,
    /// The most that it asked for within one period of its limit.
    pub(crate) peak_asked: u32,
    /// The most that it was admitted within one period of its limit.
    pub(crate) peak_admitted: u32,
    /// The fixed window in which it was admitted more than the amount within one period.
    burst: u64,
    /// What the algorithm keeps, where it is kept here.
    state: State,
    /// Only for keys that ask more than once in a while.
    window: Option<Box<Window>>,
}

/// How one request of a key ended under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Denied,
    ShadowDenied,
    /// This policy had room, and another denied.
    Elsewhere,
}

/// How many keys there were, and to how many something was denied.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct KeyCounts {
    pub(crate) seen: u64,
    pub(crate) touched: u64,
    /// Whether these are numbers and not estimates.
    pub(crate) exact: bool,
}

/// Keys that are kept although they are at rest, by each measure.
const STANDING_OUT: usize = 10_000;

impl Keys {
    pub(crate) fn new(most: usize, rest: u64) -> Self {
        let most = most.max(4 * STANDING_OUT);
        let (all, touched) = (Distinct::default(), Distinct::default());
        Self { keys: HashMap::default(), most, rest, forgotten: 0, all, touched }
    }

    /// Decides by the state of a key, and counts that. Tells it, and what the key asked for and was admitted in the
    /// period that ends now; nothing if that is of another limit than this. A limit is given by its period, and whether
    /// it is the plain one.
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

    /// Whether a burst that ends in this fixed window is the first that is noted there.
    pub(super) fn is_new_burst(&mut self, key: &[u8], window: u64) -> bool {
        let known = self.keys.get_mut(key).map(|tally| std::mem::replace(&mut tally.burst, window));
        known != Some(window)
    }

    pub(crate) fn counts(&self) -> KeyCounts {
        if self.forgotten > 0 {
            let (seen, touched) = (self.all.estimate(), self.touched.estimate());
            return KeyCounts { seen, touched: touched.min(seen), exact: false };
        }
        let touched = self.keys.values().filter(|tally| tally.is_touched()).count();
        KeyCounts { seen: self.keys.len() as u64, touched: touched as u64, exact: true }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyTally> {
        self.keys.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&KeyText, &KeyTally)> {
        self.keys.iter()
    }

    /// The keys with the most by some measure, of those that have any; equal ones in the order of their text.
    pub(crate) fn top(
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

    /// Makes room: keys that have not asked for so long that nothing of theirs is in use go, unless they stand out.
    fn forget(&mut self, now: u64) {
        let measures: [fn(&KeyTally) -> u64; 2] = [KeyTally::all_denied, KeyTally::requests];
        let bars = measures.map(|measure| {
            let mut values: Vec<u64> = self.keys.values().map(measure).collect();
            let place = values.len().saturating_sub(STANDING_OUT);
            *values.select_nth_unstable(place).1
        });
        let before = self.keys.len();
        self.keys.retain(|_, tally| {
            let live = now.saturating_sub(tally.seen) < self.rest;
            live || tally.all_denied() > bars[0] || tally.requests() > bars[1]
        });
        self.forgotten += (before - self.keys.len()) as u64;
        // All that are left are in use: then there is room for twice as many, so that this is not done all the time.
        self.most = self.most.max(2 * self.keys.len());
    }
}

impl Default for KeyTally {
    fn default() -> Self {
        Self {
            allowed: 0,
            denied: 0,
            shadow_denied: 0,
            elsewhere: 0,
            seen: 0,
            last: 0,
            last_admitted: false,
            plain: false,
            second: 0,
            in_second: 0,
            peak_second: 0,
            peak_asked: 0,
            peak_admitted: 0,
            burst: 0,
            state: State::EMPTY,
            window: None,
        }
    }
}

impl KeyTally {
    pub(crate) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.shadow_denied + self.elsewhere
    }

    pub(crate) fn all_denied(&self) -> u64 {
        self.denied + self.shadow_denied
    }

    fn is_touched(&self) -> bool {
        self.all_denied() > 0
    }

    fn count(&mut self, at: u64, (period, plain): (u64, bool), event: Event) -> Sums {
        self.seen = at;
        let second = at / 1_000_000;
        self.in_second = if second == self.second { self.in_second.saturating_add(1) } else { 1 };
        self.second = second;
        self.peak_second = self.peak_second.max(self.in_second);
        let admitted = event == Event::Allowed;
        *match event {
            Event::Allowed => &mut self.allowed,
            Event::Denied => &mut self.denied,
            Event::ShadowDenied => &mut self.shadow_denied,
            Event::Elsewhere => &mut self.elsewhere,
        } += 1;
        if self.plain && !plain {
            return Sums::default();
        }
        let is_first = self.peak_asked == 0 || plain != self.plain;
        if is_first {
            (self.plain, self.window) = (plain, None);
        }
        let recent = !is_first && at.saturating_sub(self.last) < period;
        let sums = match &mut self.window {
            Some(window) => window.add(at, admitted),
            None if recent => {
                let mut window = Box::new(Window::new(period, self.last));
                window.add(self.last, self.last_admitted);
                let sums = window.add(at, admitted);
                self.window = Some(window);
                sums
            }
            None => Sums { asked: 1, admitted: u32::from(admitted) },
        };
        (self.last, self.last_admitted) = (at, admitted);
        self.peak_asked = self.peak_asked.max(sums.asked);
        self.peak_admitted = self.peak_admitted.max(sums.admitted);
        sums
    }
}

/// Writes a key over what is in `text`, so that no two keys look the same.
pub(super) fn encode(key: KeyRef<'_>, text: &mut Vec<u8>) {
    text.clear();
    for part in key.parts() {
        let length = part.map_or(u32::MAX, |part| u32::try_from(part.len()).unwrap_or(u32::MAX));
        text.extend_from_slice(&length.to_le_bytes());
        text.extend_from_slice(part.unwrap_or_default());
    }
}

/// Characters of a key that people are shown.
const MOST_SHOWN: usize = 200;

/// A key for people: its parts, with what is not printable escaped, and only the beginning of a long one.
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
        return "(all together)".to_owned();
    }
    match shown.char_indices().nth(MOST_SHOWN) {
        Some(_) => shown.chars().take(MOST_SHOWN - 1).chain(['…']).collect(),
        None => shown,
    }
}
