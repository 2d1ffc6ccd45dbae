//! The most frequent keys, in bounded memory: the space-saving sketch.
//!
//! It keeps [`PLACES`] keys. A new key replaces the one with the lowest count and inherits its count, so a
//! key with more than 1/128 of all requests is always included.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use super::{Event, TopKey};
use crate::{KeyBuf, KeyRef, policy::PolicyName};

const PLACES: usize = 128;
/// Number of keys to return.
const SHOWN: usize = 32;
const MAX_NAME: usize = 256;
/// Counts cover the current window of this length, in microseconds, and the previous one.
const WINDOW: u64 = 30_000_000;

/// The outcome of the requests that a key stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) event: Event,
    pub(super) weight: u32,
    /// True if it counts for the order of the keys.
    pub(super) counts: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sketch {
    /// By policy and a keyed hash of the key; names are stored only for display.
    places: HashMap<(PolicyName, u64), TrackedKey>,
    hasher: RandomState,
    /// Number of the current window.
    window: u64,
}

#[derive(Clone, Debug)]
struct TrackedKey {
    /// The first bytes of the encoded key.
    name: KeyBuf,
    is_whole: bool,
    /// The count that determines the order, including the inherited count.
    count: WindowCounts,
    /// Since the key entered the sketch.
    allowed: WindowCounts,
    denied: WindowCounts,
}

/// A count in the current window and in the previous one.
#[derive(Clone, Copy, Debug, Default)]
struct WindowCounts {
    now: u64,
    before: u64,
}

impl Sketch {
    /// Records a key and adds it if it is missing.
    pub(super) fn add(&mut self, policy: PolicyName, key: KeyRef<'_>, seen: Seen, now: u64) {
        if self.note(policy, key, seen, now) {
            return;
        }
        let mut inherited = WindowCounts::default();
        if self.places.len() >= PLACES
            && let Some((&lightest, place)) = self.places.iter().min_by_key(|(_, p)| p.count.sum())
        {
            inherited = place.count;
            self.places.remove(&lightest);
        }
        let name = key.first(MAX_NAME);
        let is_whole = name.as_ref() == key;
        let (allowed, denied) = Default::default();
        let mut place = TrackedKey { name, is_whole, count: inherited, allowed, denied };
        place.see(seen);
        self.places.insert((policy, self.hasher.hash_one(key)), place);
    }

    /// Records a key that is in the sketch. Returns `false` if it is not.
    pub(super) fn note(
        &mut self,
        policy: PolicyName,
        key: KeyRef<'_>,
        seen: Seen,
        now: u64,
    ) -> bool {
        self.fade(now);
        let place = self.places.get_mut(&(policy, self.hasher.hash_one(key)));
        place.map(|place| place.see(seen)).is_some()
    }

    /// Returns the number of allowed requests of a key, as far as known.
    pub(super) fn allowed(&self, policy: PolicyName, key: KeyRef<'_>) -> u64 {
        let place = self.places.get(&(policy, self.hasher.hash_one(key)));
        place.map_or(0, |place| place.allowed.sum())
    }

    pub(super) fn top(&mut self, now: u64) -> Vec<TopKey> {
        self.fade(now);
        let mut top: Vec<_> = self.places.iter().collect();
        let name = |place: &TrackedKey| place.name.as_ref().to_string();
        top.sort_by_cached_key(|((policy, _), place)| {
            (u64::MAX - place.count.sum(), name(place), *policy)
        });
        top.truncate(SHOWN);
        let shown = |(&(policy, _), place): (&_, &TrackedKey)| TopKey {
            policy,
            key: name(place),
            whole: place.is_whole.then(|| place.name.clone()),
            count: place.count.sum(),
            allowed: place.allowed.sum(),
            denied: place.denied.sum(),
        };
        top.into_iter().map(shown).collect()
    }

    /// Drops counts that are older than the previous window.
    fn fade(&mut self, now: u64) {
        let window = now / WINDOW;
        // Another thread may have been here just before the window began.
        if window == self.window || window + 1 == self.window {
            return;
        }
        // If the clock goes back further, start over.
        let is_next = window == self.window + 1;
        self.window = window;
        self.places.retain(|_, place| {
            for count in [&mut place.count, &mut place.allowed, &mut place.denied] {
                *count = WindowCounts { now: 0, before: if is_next { count.now } else { 0 } };
            }
            place.count.before > 0
        });
    }
}

impl WindowCounts {
    fn sum(self) -> u64 {
        self.now + self.before
    }
}

impl TrackedKey {
    fn see(&mut self, Seen { event, weight, counts }: Seen) {
        let weight = u64::from(weight);
        if counts {
            self.count.now += weight;
        }
        match event {
            Event::Allowed => self.allowed.now += weight,
            Event::Denied | Event::ShadowDenied => self.denied.now += weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(event: Event, weight: u32) -> Seen {
        Seen { event, weight, counts: true }
    }

    fn add(sketch: &mut Sketch, key: &[u8], weight: u32) {
        sketch.add(PolicyName::DEFAULT, KeyRef::new(key), seen(Event::Allowed, weight), 0);
    }

    #[test]
    fn heavy_keys_survive_a_flood_of_light_ones() {
        let mut sketch = Sketch::default();
        for n in 0..100_000_u32 {
            add(&mut sketch, &n.to_le_bytes(), 1);
            if n % 20 == 0 {
                add(&mut sketch, b"heavy", 1);
            }
        }
        assert_eq!(sketch.places.len(), PLACES);
        let top = sketch.top(0);
        assert_eq!(top[0].key, "heavy");
        assert!((5_000..7_000).contains(&top[0].count), "{}", top[0].count);
        // Its own counts are exact, because it entered early and stayed.
        assert_eq!((top[0].allowed, top[0].denied), (5_000, 0));
    }

    #[test]
    fn a_key_above_its_share_is_always_there_and_off_by_no_more_than_that() {
        for seed in 0..4_u64 {
            let mut sketch = Sketch::default();
            let mut state = seed;
            let mut counts = HashMap::<u64, u64>::new();
            for _ in 0..4_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let draw = state >> 33;
                // Few keys have many requests, and very many have few.
                let key = if draw % 4 == 0 { draw / 4 % 10 } else { draw % 50_000 };
                *counts.entry(key).or_default() += 1;
                add(&mut sketch, &key.to_le_bytes(), 1);
            }
            let share = 4_000 / PLACES as u64;
            let kept = |key: u64| {
                let id =
                    (PolicyName::DEFAULT, sketch.hasher.hash_one(KeyRef::new(&key.to_le_bytes())));
                sketch.places.get(&id)
            };
            for (&key, &count) in &counts {
                match kept(key) {
                    None => assert!(count <= share, "seed {seed}: {key} had {count}"),
                    Some(place) => {
                        assert!(
                            (count..=count + share).contains(&place.count.sum()),
                            "seed {seed}"
                        );
                        assert!(place.allowed.sum() <= count, "seed {seed}");
                    }
                }
            }
            assert!((0..10).all(|key| kept(key).is_some()), "seed {seed}");
        }
    }

    #[test]
    fn old_windows_are_dropped() {
        let mut sketch = Sketch::default();
        let key = KeyRef::new(b"k");
        add(&mut sketch, b"k", 8);
        sketch.add(PolicyName::DEFAULT, key, seen(Event::Denied, 1), WINDOW);
        let counts = |top: Vec<TopKey>| -> Vec<_> {
            top.iter().map(|top| (top.count, top.allowed, top.denied)).collect()
        };
        assert_eq!(counts(sketch.top(2 * WINDOW - 1)), [(9, 8, 1)]);
        assert_eq!(counts(sketch.top(2 * WINDOW)), [(1, 0, 1)]);
        assert_eq!(counts(sketch.top(3 * WINDOW - 1)), [(1, 0, 1)]);
        assert_eq!(counts(sketch.top(3 * WINDOW)), []);
        // A late thread.
        sketch.add(PolicyName::DEFAULT, key, seen(Event::Denied, 1), 3 * WINDOW);
        sketch.add(PolicyName::DEFAULT, key, seen(Event::Denied, 1), 3 * WINDOW - 1);
        assert_eq!(counts(sketch.top(3 * WINDOW)), [(2, 0, 2)]);
        // No request for a while.
        sketch.add(PolicyName::DEFAULT, key, seen(Event::Denied, 1), 3 * WINDOW);
        assert_eq!(counts(sketch.top(5 * WINDOW)), []);
    }

    #[test]
    fn a_long_key_is_cut_and_says_so() {
        let mut sketch = Sketch::default();
        let (long, short) = ([b'x'; 10_000], [b'y'; MAX_NAME]);
        add(&mut sketch, &long, 2);
        add(&mut sketch, &short, 1);
        let top = sketch.top(0);
        assert_eq!((top[0].key.len(), &top[0].whole), (MAX_NAME, &None));
        assert_eq!(top[1].whole, Some(KeyRef::new(&short).to_buf()));
    }

    #[test]
    fn notes_do_not_add_or_reorder_keys() {
        let mut sketch = Sketch::default();
        let (policy, key) = (PolicyName::DEFAULT, KeyRef::new(b"k"));
        let passed = Seen { event: Event::Allowed, weight: 3, counts: false };
        assert!(!sketch.note(policy, key, passed, 0));
        assert_eq!(sketch.top(0), []);
        sketch.add(policy, key, seen(Event::Denied, 2), 0);
        assert!(sketch.note(policy, key, passed, 0));
        let top = &sketch.top(0)[0];
        assert_eq!((top.count, top.allowed, top.denied), (2, 3, 2));
    }
}
