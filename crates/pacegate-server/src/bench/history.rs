//! What was asked and answered: all that the checker knows.

/// One request and what became of it. Times are microseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Not after the server decided.
    pub(crate) sent: u64,
    /// How long after that the answer was there, for certain; [`NEVER`] if it never came.
    pub(crate) took: u32,
    pub(crate) key: u32,
    pub(crate) cost: u32,
    pub(crate) answer: Answer,
}

/// What a server said of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed,
    Denied,
    /// Neither: an error, or nothing at all. It may have been charged or not.
    Unknown,
}

/// The answer that did not come.
pub(crate) const NEVER: u32 = u32::MAX;

/// The requests of a run, as many as there is room for.
#[derive(Debug)]
pub(crate) struct History {
    entries: Vec<Entry>,
    most: usize,
    /// When the first request was sent that had no room.
    full_from: Option<u64>,
}

impl Entry {
    /// Not before the server decided.
    pub(crate) fn received(&self) -> u64 {
        match self.took {
            NEVER => u64::MAX / 2,
            took => self.sent + u64::from(took),
        }
    }
}

impl History {
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: Vec::new(), most, full_from: None }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        if self.entries.len() < self.most {
            return self.entries.push(entry);
        }
        let first = self.full_from.unwrap_or(entry.sent);
        self.full_from = Some(first.min(entry.sent));
    }

    /// Takes in what another has kept. Both had a bound of their own.
    pub(crate) fn join(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.most += other.most;
        self.full_from = match (self.full_from, other.full_from) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }

    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// From when on requests are missing, if any are.
    pub(crate) fn full_from(&self) -> Option<u64> {
        self.full_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sent: u64) -> Entry {
        Entry { sent, took: 5, key: 0, cost: 1, answer: Answer::Allowed }
    }

    #[test]
    fn what_has_no_room_is_known_to_be_missing() {
        let mut history = History::new(1);
        history.push(entry(10));
        assert_eq!((&history.entries[..], history.full_from()), (&[entry(10)][..], None));
        for sent in [30, 20, 40] {
            history.push(entry(sent));
        }
        assert_eq!((history.entries.len(), history.full_from()), (1, Some(20)));
        let mut other = History::new(1);
        other.push(entry(5));
        other.join(history);
        assert_eq!((other.entries.len(), other.full_from()), (2, Some(20)));
    }

    #[test]
    fn an_answer_that_never_came_may_have_been_given_at_any_time() {
        assert_eq!(entry(10).received(), 15);
        assert!(Entry { took: NEVER, ..entry(10) }.received() > u64::MAX / 4);
        assert_eq!(size_of::<Entry>(), 24);
    }
}
