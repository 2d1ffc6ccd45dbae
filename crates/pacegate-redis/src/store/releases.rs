//! Permits whose release failed. The release is retried until it succeeds or the permit has expired. Releases are
//! idempotent.

use std::{
    collections::BTreeMap,
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

use super::{Inner, MAX_CONCURRENT_RETURNS};
use crate::{
    cell::{CellCharge, CellId},
    wire::Action,
};

/// The cell of a permit, and its id.
type PermitId = (CellId, [u64; 2]);

/// The permits to release.
#[derive(Debug, Default)]
pub(super) struct PendingReleases {
    /// With the time at which each permit expires.
    permits: Mutex<BTreeMap<PermitId, (CellCharge, Instant)>>,
    /// Notified when a permit was added or the store was dropped.
    changed: Notify,
}

/// Maximum number of permits to retry. Others end when they expire.
const MAX_PENDING: usize = 65_536;
/// Interval between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl PendingReleases {
    pub(super) fn len(&self) -> usize {
        self.permits.lock().len()
    }

    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    fn add(&self, charge: CellCharge) {
        let mut permits = self.permits.lock();
        if permits.len() < MAX_PENDING {
            let expires = Instant::now() + charge.limit.period();
            permits.entry((charge.cell, charge.permit)).or_insert((charge, expires));
        }
        drop(permits);
        self.wake();
    }

    fn remove(&self, charge: &CellCharge) {
        self.permits.lock().remove(&(charge.cell, charge.permit));
    }

    /// Returns the permits that have not expired and that `can_be_sent`.
    fn due(&self, can_be_sent: impl Fn(&CellCharge) -> bool) -> Vec<CellCharge> {
        let (mut permits, now) = (self.permits.lock(), Instant::now());
        permits.retain(|_, (_, expires)| *expires > now);
        permits.values().map(|(charge, _)| *charge).filter(can_be_sent).collect()
    }
}

/// Retries releases until the store is dropped.
pub(super) async fn retry(releases: Arc<PendingReleases>, store: Weak<Inner>) {
    loop {
        match releases.len() {
            0 => releases.changed.notified().await,
            _ => sleep(RETRY_INTERVAL).await,
        }
        let Some(store) = store.upgrade() else { return };
        store.retry_releases().await;
    }
}

impl Inner {
    /// Releases a permit, now or later.
    pub(super) async fn release(&self, charge: CellCharge) -> Result<(), StoreError> {
        let released = self.update(charge, Action::Release).await;
        if may_succeed_later(&released) {
            self.releases.add(charge);
        }
        released.map(drop)
    }

    async fn retry_releases(&self) {
        let session = self.session();
        let is_open = |charge: &CellCharge| session.worker(charge).is_ok_and(|it| it.is_open());
        let due = self.releases.due(is_open);
        let release = async |charge| {
            if !may_succeed_later(&self.update(charge, Action::Release).await) {
                self.releases.remove(&charge);
            }
        };
        stream::iter(due).for_each_concurrent(MAX_CONCURRENT_RETURNS, release).await;
    }
}

/// Returns whether to retry a release. A server that answers with an error would answer the same again.
fn may_succeed_later(released: &Result<bool, StoreError>) -> bool {
    use StoreError::{Interrupted, TimedOut, Unavailable};
    matches!(released, Err(Unavailable(_) | TimedOut | Interrupted(_)))
}
