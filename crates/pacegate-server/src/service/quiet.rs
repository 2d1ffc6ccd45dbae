use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Limits how often an event that outsiders can cause is logged.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// The time of the last log line, and the number of events since then that were not logged.
    last: Mutex<Option<(Instant, u64)>>,
}

/// The minimum time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Quiet {
    /// Returns the number of events since the last line, this one included, if it is time for another line.
    pub(crate) fn events(&self) -> Option<u64> {
        self.events_at(Instant::now())
    }

    fn events_at(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock();
        match &mut *last {
            Some((logged, skipped)) if now < *logged + LOG_INTERVAL => {
                *skipped += 1;
                None
            }
            _ => {
                let skipped = last.replace((now, 0)).map_or(0, |(_, skipped)| skipped);
                Some(skipped + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_summed_up_between_lines() {
        let (quiet, now) = (Quiet::default(), Instant::now());
        assert_eq!([(); 3].map(|()| quiet.events_at(now)), [Some(1), None, None]);
        let later = now + LOG_INTERVAL;
        assert_eq!([(); 2].map(|()| quiet.events_at(later)), [Some(3), None]);
    }
}
