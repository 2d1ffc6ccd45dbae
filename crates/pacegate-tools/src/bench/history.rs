//! The recorded requests and their outcomes: the input of the checker.

/// One request and its outcome. Times are microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Time just before the request was sent: a lower bound of the server's decision time.
    pub sent: u64,
    /// Microseconds from `sent` until the response was read, rounded up; [`NEVER`] if no response arrived.
    pub took: u32,
    pub key: u32,
    pub cost: u32,
    pub answer: Answer,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    Denied,
    /// An error or no response. The request may have been charged or not.
    Unknown,
}

/// Value of [`Exchange::took`] for a request without a response.
pub(crate) const NEVER: u32 = u32::MAX;

/// The requests of a run, up to a maximum.
#[derive(Debug)]
pub struct History {
    entries: Vec<Exchange>,
    most: usize,
    /// Send time of the first request that was dropped because the history was full.
    full_from: Option<u64>,
}

impl Exchange {
    /// Returns the time at which the response was read: an upper bound of the server's decision time.
    pub fn received(&self) -> u64 {
        match self.took {
            NEVER => u64::MAX / 2,
            took => self.sent + u64::from(took),
        }
    }
}

impl History {
    pub fn new(most: usize) -> Self {
        Self { entries: Vec::new(), most, full_from: None }
    }

    pub fn push(&mut self, entry: Exchange) {
        if self.entries.len() < self.most {
            return self.entries.push(entry);
        }
        let first = self.full_from.unwrap_or(entry.sent);
        self.full_from = Some(first.min(entry.sent));
    }

    /// Appends the entries of another history. Their capacities add up.
    pub fn join(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.most += other.most;
        self.full_from = match (self.full_from, other.full_from) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }

    pub fn entries_mut(&mut self) -> &mut [Exchange] {
        &mut self.entries
    }

    /// Returns the time from which requests are missing, if any are.
    pub fn full_from(&self) -> Option<u64> {
        self.full_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sent: u64) -> Exchange {
        Exchange { sent, took: 5, key: 0, cost: 1, answer: Answer::Allowed }
    }

    #[test]
    fn a_full_history_records_from_when_requests_are_missing() {
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
    fn a_missing_response_leaves_the_decision_time_open() {
        assert_eq!(entry(10).received(), 15);
        assert!(Exchange { took: NEVER, ..entry(10) }.received() > u64::MAX / 4);
        assert_eq!(size_of::<Exchange>(), 24);
    }
}
