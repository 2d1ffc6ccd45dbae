use std::{cell::Cell, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Time between two reads from clients whose requests lack an API key, of all such clients of a worker together.
/// Without it a flood of their requests would take turns with those of other clients.
const PAUSE: Duration = Duration::from_millis(10);

/// The reads of one worker from such clients.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// The instant of the last reserved read. Reservations are spread out, so that clients do not wake up at once.
    reserved: Option<Instant>,
    /// The start of the last read. A worker that has fallen behind does not catch up.
    begun: Option<Instant>,
}

thread_local! {
    static READS: Cell<Reads> = const { Cell::new(Reads { reserved: None, begun: None }) };
}

/// Waits until a client whose last request lacked an API key may be read from again.
pub(crate) async fn unauthenticated_turn() {
    loop {
        let mut reads = READS.get();
        let reserved = reads.reserve(Instant::now());
        READS.set(reads);
        sleep_until(reserved).await;
        let mut reads = READS.get();
        let is_begun = reads.begin(Instant::now());
        READS.set(reads);
        if is_begun {
            return;
        }
    }
}

impl Reads {
    /// Reserves the next free instant.
    fn reserve(&mut self, now: Instant) -> Instant {
        let reserved = self.reserved.map_or(now, |last| last.max(now)) + PAUSE;
        self.reserved = Some(reserved);
        reserved
    }

    /// Starts a read, unless the last one started less than the interval ago.
    fn begin(&mut self, now: Instant) -> bool {
        let may_begin = self.begun.is_none_or(|last| now >= last + PAUSE);
        if may_begin {
            self.begun = Some(now);
        }
        may_begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_apart_even_if_the_worker_has_fallen_behind() {
        let (mut reads, now) = (Reads::default(), Instant::now());
        assert_eq!(reads.reserve(now), now + PAUSE);
        assert_eq!(reads.reserve(now), now + 2 * PAUSE);
        let late = now + 10 * PAUSE;
        assert_eq!(reads.reserve(late), late + PAUSE);
        assert_eq!([reads.begin(late), reads.begin(late)], [true, false]);
        assert!(reads.begin(late + PAUSE));
    }
}
