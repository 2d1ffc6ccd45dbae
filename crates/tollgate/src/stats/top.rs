//! The heaviest keys, in bounded memory: the space-saving sketch.
//!
//! It keeps [`PLACES`] keys. A new one takes the place of the lightest and inherits its count, so a key that truly
//! had more than a 128th of all is always among them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use super::TopKey;
use crate::{KeyBuf, KeyRef, policy::PolicyName};

const PLACES: usize = 128;
/// How many are shown.
const SHOWN: usize = 32;
const MAX_NAME: usize = 256;
const HALF_LIFE: u64 = 60_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Sketch {
    /// By policy and a keyed hash of the key: names are kept for reading only.
    places: HashMap<(PolicyName, u64), Place>,
    hasher: RandomState,
    halved: u64,
}

#[derive(Clone, Debug)]
struct Place {
    /// The first bytes of the key, in its own encoding.
    name: KeyBuf,
    count: u64,
}

impl Sketch {
    pub(super) fn add(&mut self, policy: PolicyName, key: KeyRef<'_>, weight: u32, now: u64) {
        self.fade(now);
        let id = (policy, self.hasher.hash_one(key));
        if let Some(place) = self.places.get_mut(&id) {
            place.count += u64::from(weight);
            return;
        }
        let mut inherited = 0;
        if self.places.len() >= PLACES
            && let Some((&lightest, place)) = self.places.iter().min_by_key(|(_, p)| p.count)
        {
            inherited = place.count;
            self.places.remove(&lightest);
        }
        let place = Place { name: key.first(MAX_NAME), count: inherited + u64::from(weight) };
        self.places.insert(id, place);
    }

    pub(super) fn top(&mut self, now: u64) -> Vec<TopKey> {
        self.fade(now);
        let mut top: Vec<_> = self
            .places
            .iter()
            .map(|((policy, _), place)| TopKey {
                policy: *policy,
                key: place.name.as_ref().to_string(),
                count: place.count,
            })
            .collect();
        top.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        top.truncate(SHOWN);
        top
    }

    /// Halves all counts for every minute that has passed.
    fn fade(&mut self, now: u64) {
        let minutes = now.saturating_sub(self.halved) / HALF_LIFE;
        if minutes == 0 {
            return;
        }
        self.halved = now;
        let shift = u32::try_from(minutes).unwrap_or(u32::MAX);
        self.places.retain(|_, place| {
            place.count = place.count.checked_shr(shift).unwrap_or(0);
            place.count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_keys_survive_a_flood_of_light_ones() {
        let mut sketch = Sketch::default();
        for n in 0..100_000_u32 {
            sketch.add(PolicyName::DEFAULT, KeyRef::new(&n.to_le_bytes()), 1, 0);
            if n % 20 == 0 {
                sketch.add(PolicyName::DEFAULT, KeyRef::new(b"heavy"), 1, 0);
            }
        }
        assert_eq!(sketch.places.len(), PLACES);
        let top = sketch.top(0);
        assert_eq!(top[0].key, "heavy");
        assert!((5_000..7_000).contains(&top[0].count), "{}", top[0].count);
    }

    #[test]
    fn what_is_over_fades() {
        let mut sketch = Sketch::default();
        sketch.add(PolicyName::DEFAULT, KeyRef::new(b"k"), 8, 0);
        assert_eq!(sketch.top(HALF_LIFE - 1)[0].count, 8);
        assert_eq!(sketch.top(HALF_LIFE)[0].count, 4);
        assert_eq!(sketch.top(HALF_LIFE * 3)[0].count, 1);
        assert_eq!(sketch.top(HALF_LIFE * 200), []);
    }
}
