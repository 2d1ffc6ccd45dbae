//! Counters of the store's activity.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crossbeam_utils::CachePadded;

use crate::fingerprint::random;

/// A monotonic counter. It is sharded, so that threads do not contend for one cache line.
#[derive(Debug, Default)]
pub(crate) struct Counter([CachePadded<AtomicU64>; SHARDS]);

const SHARDS: usize = 8;

thread_local! {
    static SHARD: usize = random() as usize % SHARDS;
}

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0[SHARD.with(|shard| *shard)].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.load(Ordering::Relaxed)).sum()
    }
}

/// The counters of a store, since it was created.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) trips: Counter,
    pub(crate) calls: Counter,
    pub(crate) requests: Counter,
    pub(crate) cells: Counter,
    pub(crate) denied_locally: Counter,
    pub(crate) leased: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) redirects: Counter,
    pub(crate) closed: Counter,
}

impl Totals {
    pub(crate) fn batched(&self, requests: usize, cells: usize) {
        self.calls.add(u64::from(requests > 0));
        self.requests.add(requests as u64);
        self.cells.add(cells as u64);
    }
}

/// Statistics of a [`RedisStore`](crate::RedisStore) since it was created.
///
/// Alert on `closed` and `timed_out`: both mean that failure modes have decided. `requests / calls` is the average
/// batch, and `(denied_locally + leased)` the requests that needed no call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The servers in use.
    pub servers: Vec<ServerStats>,
    /// Round trips.
    pub trips: u64,
    /// Batches: one script call each.
    pub calls: u64,
    /// Requests in these batches.
    pub requests: u64,
    /// Keys in these batches. Requests above this number were combined with others for the same key.
    pub keys: u64,
    /// Requests answered by the deny cache.
    pub denied_locally: u64,
    /// Current entries of the deny cache.
    pub deny_cache_entries: usize,
    /// Requests answered from leases.
    pub leased: u64,
    /// Leased units that are not yet spent, returned or expired.
    pub lease_units_outstanding: u64,
    /// Requests without an answer within the deadline.
    pub timed_out: u64,
    /// Requests that a cluster redirected to another server.
    pub redirects: u64,
    /// Circuit breaker openings: a server was lost or too slow.
    pub closed: u64,
    /// Permits whose release failed and will be retried.
    pub returning: usize,
}

/// The status of one server.
///
/// `trouble` is the text to show to an operator: it names the error of the last attempt, such as `connection refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// The address, without user and password.
    pub address: String,
    /// The cause, if the server cannot be used. `None` if it can.
    pub trouble: Option<String>,
    /// Duration of the last round trip.
    pub round_trip: Duration,
}
