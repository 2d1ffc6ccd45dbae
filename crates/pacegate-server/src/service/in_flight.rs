//! Bytes of requests and answers that the connections of a listener hold, and their bounds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout};

/// Bytes that all connections of one listener hold.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Largest request. A connection may hold several.
    request_bytes: usize,
    held: AtomicUsize,
}

/// Bytes of one HTTP/2 connection: bodies that are being read or used, and answers that the client has not read.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Arc<InFlight>,
    held: AtomicUsize,
    /// Notified when bytes are returned.
    returned: Notify,
    /// Unread answers, by the period in which they were made. Two periods are enough: an answer that outlives the
    /// period after its own is overdue.
    unread: [AtomicUsize; 2],
    /// The place of the current period in `unread`.
    is_odd: AtomicBool,
}

/// Bytes that count until they are dropped.
#[derive(Debug)]
pub(crate) struct Held {
    share: Arc<Share>,
    bytes: usize,
}

/// An answer that counts, and has to be read in time.
#[derive(Debug)]
pub(crate) struct Unread {
    held: Held,
    period: usize,
}

/// Bytes that are counted until HTTP/2 has sent them or dropped them.
struct Counted<C> {
    bytes: Bytes,
    _count: C,
}

/// A connection holds too many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// Bytes that all connections of a listener may hold, unless requests may be so large that few would fit.
const MAX_BYTES: usize = 24 << 20;
/// Bytes that one connection may hold, with the same exception.
const MAX_CONNECTION_BYTES: usize = 1 << 20;
/// Bytes that a connection may still hold once all of them hold [`MAX_BYTES`]. A client that reads its answers and
/// whose requests arrive in one piece is served with these.
const MIN_CONNECTION_BYTES: usize = 16 << 10;
/// Requests of the largest size that fit into the bounds for a connection, and for all.
const REQUESTS: usize = 4;

impl InFlight {
    /// Creates a pool for requests of at most this size.
    pub(crate) fn new(request_bytes: usize) -> Arc<Self> {
        Arc::new(Self { request_bytes, held: AtomicUsize::new(0) })
    }

    /// Returns the number of bytes that a connection may hold now.
    fn limit(&self) -> usize {
        let requests = self.request_bytes.saturating_mul(REQUESTS);
        match self.held.load(Ordering::Relaxed) < MAX_BYTES.max(requests) {
            true => MAX_CONNECTION_BYTES.max(requests),
            false => MIN_CONNECTION_BYTES,
        }
    }

    /// Creates the share of a new connection.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share {
            pool: self.clone(),
            held: AtomicUsize::new(0),
            returned: Notify::new(),
            unread: [AtomicUsize::new(0), AtomicUsize::new(0)],
            is_odd: AtomicBool::new(false),
        })
    }
}

impl Share {
    /// Waits until the connection may hold another answer. The request holds `bytes` meanwhile. Fails if the connection
    /// has too many such requests, or if the client reads nothing within `max_wait`.
    pub(crate) async fn wait_for_room(
        self: &Arc<Self>,
        bytes: impl FnOnce() -> usize,
        max_wait: Duration,
    ) -> Result<(), TooMuch> {
        if self.has_room() {
            return Ok(());
        }
        let bytes = bytes();
        if self.held.load(Ordering::Relaxed).saturating_add(bytes) > 2 * self.pool.limit() {
            return Err(TooMuch);
        }
        let _held = self.count(bytes);
        let room = async {
            loop {
                let returned = self.returned.notified();
                // The request does not wait for its own bytes.
                if self.held.load(Ordering::Relaxed) < self.pool.limit().saturating_add(bytes) {
                    return;
                }
                returned.await;
            }
        };
        timeout(max_wait, room).await.map_err(|_| TooMuch)
    }

    fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.pool.limit()
    }

    /// Counts the bytes of a request. Fails if the connection exceeds its bound.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Result<Held, TooMuch> {
        let sum = self.held.load(Ordering::Relaxed).saturating_add(bytes);
        if sum > self.pool.limit() { Err(TooMuch) } else { Ok(self.count(bytes)) }
    }

    /// Counts an answer of this length.
    pub(crate) fn answer(self: &Arc<Self>, bytes: usize) -> Unread {
        let period = usize::from(self.is_odd.load(Ordering::Relaxed));
        self.unread[period].fetch_add(1, Ordering::Relaxed);
        Unread { held: self.count(bytes), period }
    }

    fn count(self: &Arc<Self>, bytes: usize) -> Held {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.pool.held.fetch_add(bytes, Ordering::Relaxed);
        Held { share: self.clone(), bytes }
    }

    /// Returns the number of unread responses.
    pub(crate) fn unread(&self) -> usize {
        self.unread.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Starts another period. Returns true if a response from before the previous period is still unread.
    pub(crate) fn next_period(&self) -> bool {
        let is_odd = self.is_odd.fetch_xor(true, Ordering::Relaxed);
        self.unread[usize::from(!is_odd)].load(Ordering::Relaxed) > 0
    }
}

impl Held {
    /// Counts more bytes. Fails if the connection exceeds its bound.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), TooMuch> {
        let mut more = self.share.hold(bytes)?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Counts for as long as these bytes are kept.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _count: self })
    }
}

impl Unread {
    /// Counts for as long as these bytes are kept.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _count: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.share.held.fetch_sub(self.bytes, Ordering::Relaxed);
            self.share.pool.held.fetch_sub(self.bytes, Ordering::Relaxed);
            self.share.returned.notify_waiters();
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.held.share.unread[self.period].fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C> AsRef<[u8]> for Counted<C> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn a_connection_holds_its_bound_and_returns_it() {
        let pool = InFlight::new(64 * KIB);
        let share = pool.share();
        let mut held = share.hold(1_000 * KIB).unwrap();
        assert_eq!(held.grow(25 * KIB), Err(TooMuch));
        held.grow(24 * KIB).unwrap();
        assert_eq!(share.hold(1).unwrap_err(), TooMuch);
        drop(held);
        assert_eq!(pool.held.load(Ordering::Relaxed), 0);
        assert!(share.hold(1_024 * KIB).is_ok());
    }

    #[test]
    fn a_full_pool_leaves_each_connection_a_little() {
        let pool = InFlight::new(64 * KIB);
        let held: Vec<_> = (0..MAX_BYTES / MAX_CONNECTION_BYTES)
            .map(|_| pool.share().hold(1_024 * KIB).unwrap())
            .collect();
        let share = pool.share();
        assert_eq!(share.hold(16 * KIB + 1).unwrap_err(), TooMuch);
        assert!(share.hold(16 * KIB).is_ok());
        drop(held);
        assert!(share.hold(1_024 * KIB).is_ok());
    }

    #[test]
    fn the_largest_request_fits() {
        let pool = InFlight::new(16 << 20);
        assert!(pool.share().hold(64 << 20).is_ok());
    }

    #[test]
    fn an_answer_is_overdue_after_a_whole_period() {
        let share = InFlight::new(KIB).share();
        assert!(!share.next_period());
        let answer = share.answer(6).keep(Bytes::from_static(b"answer"));
        assert_eq!((&*answer, share.held.load(Ordering::Relaxed)), (&b"answer"[..], 6));
        assert!(!share.next_period());
        let part = answer.slice(2..);
        drop(answer);
        assert!(share.next_period());
        drop(part);
        assert!(!share.next_period() && !share.next_period());
        assert_eq!(share.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_request_waits_for_room_and_not_for_ever() {
        let patience = Duration::from_millis(20);
        let share = InFlight::new(KIB).share();
        let answer = share.answer(1_024 * KIB);
        let asked = share.wait_for_room(|| KIB, patience).await;
        assert_eq!(asked, Err(TooMuch));
        assert_eq!(share.wait_for_room(|| 1_025 * KIB, patience).await, Err(TooMuch));
        let read = async { drop(answer) };
        let (asked, ()) = tokio::join!(share.wait_for_room(|| KIB, Duration::from_secs(60)), read);
        assert_eq!((asked, share.held.load(Ordering::Relaxed)), (Ok(()), 0));
    }
}
