//! Until when which calls are not wanted.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tollgate::{Key, KeyBuf, Timestamp};

/// Pauses that responses have asked for, at most [`Pauses::MOST`] at a time.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Held for a lookup; nothing is awaited under it.
    until: Mutex<HashMap<KeyBuf, Timestamp>>,
}

impl Pauses {
    /// Where there are more, those that end first are forgotten first.
    pub(super) const MOST: usize = 1_024;

    /// When calls with a key are wanted again, if not now.
    pub(super) fn until(&self, key: &impl Key, now: Timestamp) -> Option<Timestamp> {
        let key = key.with(|key| key.to_buf());
        let mut pauses = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let until = *pauses.get(&key)?;
        if until <= now {
            pauses.remove(&key);
            return None;
        }
        Some(until)
    }

    /// Makes calls with a key wait; a longer pause that is already known stays.
    pub(super) fn pause(&self, key: &impl Key, until: Timestamp, now: Timestamp) {
        let key = key.with(|key| key.to_buf());
        let mut pauses = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= Self::MOST && !pauses.contains_key(&key) {
            pauses.retain(|_, until| *until > now);
        }
        if pauses.len() >= Self::MOST && !pauses.contains_key(&key) {
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
        let (pauses, second) = (Pauses::default(), Timestamp::from_secs);
        pauses.pause(&"a", second(10), second(0));
        pauses.pause(&"a", second(5), second(0));
        assert_eq!(pauses.until(&"a", second(9)), Some(second(10)));
        assert_eq!(pauses.until(&"a", second(10)), None);
        assert!(pauses.until.lock().unwrap().is_empty());
        for number in 0..5_000_u64 {
            pauses.pause(&number, second(100 + number), second(0));
        }
        assert_eq!(pauses.until.lock().unwrap().len(), Pauses::MOST);
        assert_eq!(pauses.until(&4_999_u64, second(0)), Some(second(5_099)));
        assert_eq!(pauses.until(&0_u64, second(0)), None);
    }
}
