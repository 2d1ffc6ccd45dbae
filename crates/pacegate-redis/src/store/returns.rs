//! Permits whose release failed. It is retried until it succeeds or the permit has expired: a release is by id, so
//! repeating it is harmless.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::stream::{self, StreamExt};
use pacegate::StoreError;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{Inner, RETURNING};
use crate::{
    cell::{CellId, Want},
    wire::Action,
};

/// The cell of a permit, and its id.
type PermitId = (CellId, [u64; 2]);

/// The permits to return.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Each with the instant at which it has expired.
    permits: Mutex<HashMap<PermitId, (Want, Instant)>>,
    /// There is something to return, or the store was dropped.
    changed: Notify,
}

/// The most permits that are kept for a retry. Permits beyond that end with their period.
const MAX_RETURNS: usize = 65_536;
/// How often connections are tried.
const RETRY: Duration = Duration::from_millis(50);

impl Returns {
    pub(super) fn len(&self) -> usize {
        self.permits.lock().len()
    }

    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    fn add(&self, want: Want) {
        let mut permits = self.permits.lock();
        if permits.len() < MAX_RETURNS {
            let expires = Instant::now() + want.limit.period();
            permits.entry((want.cell, want.permit)).or_insert((want, expires));
        }
        drop(permits);
        self.wake();
    }

    fn remove(&self, want: &Want) {
        self.permits.lock().remove(&(want.cell, want.permit));
    }

    /// The permits that have not expired and that `can_be_sent`.
    fn due(&self, can_be_sent: impl Fn(&Want) -> bool) -> Vec<Want> {
        let (mut permits, now) = (self.permits.lock(), Instant::now());
        permits.retain(|_, (_, expires)| *expires > now);
        permits.values().map(|(want, _)| *want).filter(can_be_sent).collect()
    }
}

/// Retries releases, for as long as the store is there.
pub(super) async fn retry(returns: Arc<Returns>, store: Weak<Inner>) {
    loop {
        match returns.len() {
            0 => returns.changed.notified().await,
            _ => sleep(RETRY).await,
        }
        let Some(store) = store.upgrade() else { return };
        store.return_permits().await;
    }
}

impl Inner {
    /// Returns a permit, now or later.
    pub(super) async fn release(&self, want: Want) -> Result<(), StoreError> {
        let released = self.amend(want, Some(Action::Release)).await;
        if is_retried(&released) {
            self.returns.add(want);
        }
        released.map(drop)
    }

    async fn return_permits(&self) {
        let session = self.session();
        let is_open = |want: &Want| session.lane(want).is_ok_and(|lane| lane.is_open());
        let due = self.returns.due(is_open);
        let release = async |want| (want, self.amend(want, Some(Action::Release)).await);
        let releases = stream::iter(due).map(release).buffer_unordered(RETURNING);
        let note = |(want, released)| {
            if !is_retried(&released) {
                self.returns.remove(&want);
            }
        };
        releases.for_each(async |released| note(released)).await;
    }
}

/// Whether a release has to be tried again. A server that answers with an error answers the same the next time.
fn is_retried(released: &Result<bool, StoreError>) -> bool {
    use StoreError::{Interrupted, TimedOut, Unavailable};
    matches!(released, Err(Unavailable(_) | TimedOut | Interrupted(_)))
}
