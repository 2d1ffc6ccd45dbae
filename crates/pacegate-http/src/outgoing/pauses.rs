//! Pauses that upstream services have asked for.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pacegate::{Key, KeyBuf};

/// Pauses by key, at most [`Pauses::MAX_KEYS`].
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// End of each pause by [`pacegate::Clock::elapsed`]. The lock is never held across an await.
    until: Mutex<HashMap<KeyBuf, Duration>>,
}

impl Pauses {
    /// Above this, the pause that ends first is dropped.
    pub(super) const MAX_KEYS: usize = 1_024;

    /// Returns the time until the pause of a key ends, or `None` if it has none.
    pub(super) fn left(&self, key: &impl Key, elapsed: Duration) -> Option<Duration> {
        let key = key.with(|key| key.to_buf());
        let mut pauses = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let until = *pauses.get(&key)?;
        if until <= elapsed {
            pauses.remove(&key);
            return None;
        }
        Some(until - elapsed)
    }

    /// Starts or extends the pause of a key.
    pub(super) fn pause(&self, key: &impl Key, wait: Duration, elapsed: Duration) {
        let until = elapsed.saturating_add(wait);
        let key = key.with(|key| key.to_buf());
        let mut pauses = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= Self::MAX_KEYS && !pauses.contains_key(&key) {
            pauses.retain(|_, until| *until > elapsed);
        }
        if pauses.len() >= Self::MAX_KEYS && !pauses.contains_key(&key) {
            let first = pauses.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                pauses.remove(&first);
            }
        }
        let known = pauses.entry(key).or_insert(until);
        *known = until.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_and_are_bounded() {
        let (pauses, second) = (Pauses::default(), Duration::from_secs);
        pauses.pause(&"a", second(10), second(0));
        pauses.pause(&"a", second(4), second(1));
        assert_eq!(pauses.left(&"a", second(9)), Some(second(1)));
        assert_eq!(pauses.left(&"a", second(10)), None);
        assert!(pauses.until.lock().unwrap().is_empty());
        for number in 0..5_000_u64 {
            pauses.pause(&number, second(100 + number), second(0));
        }
        assert_eq!(pauses.until.lock().unwrap().len(), Pauses::MAX_KEYS);
        assert_eq!(pauses.left(&4_999_u64, second(0)), Some(second(5_099)));
        assert_eq!(pauses.left(&0_u64, second(0)), None);
    }
}
