//! What the store has been doing.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crossbeam_utils::CachePadded;

/// A number that only grows. Threads add to places of their own: what is counted for every request would otherwise be
/// one place that all processors quarrel about.
#[derive(Debug, Default)]
pub(crate) struct Counter([CachePadded<AtomicU64>; PLACES]);

const PLACES: usize = 8;

thread_local! {
    static PLACE: usize = RandomState::new().hash_one(0) as usize % PLACES;
}

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0[PLACE.with(|place| *place)].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|place| place.load(Ordering::Relaxed)).sum()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
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

impl Counters {
    pub(crate) fn batched(&self, requests: usize, cells: usize) {
        self.calls.add(u64::from(requests > 0));
        self.requests.add(requests as u64);
        self.cells.add(cells as u64);
    }
}

/// What a [`RedisStore`](crate::RedisStore) has been doing since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The servers in use, each with how it is doing.
    pub servers: Vec<ServerStats>,
    /// Round trips made.
    pub trips: u64,
    /// Batches decided: a script call each.
    pub calls: u64,
    /// Requests that travelled in them.
    pub requests: u64,
    /// Keys that they named. Requests above this number were combined with others for the same key.
    pub keys: u64,
    /// Requests answered by the deny cache.
    pub denied_locally: u64,
    /// Entries in the deny cache now.
    pub deny_cache_entries: usize,
    /// Requests answered from leases.
    pub leased: u64,
    /// Units drawn ahead and not spent, returned or expired yet.
    pub lease_units_outstanding: u64,
    /// Requests that got no answer within the deadline.
    pub timed_out: u64,
    /// Requests that a cluster sent to another of its servers.
    pub redirects: u64,
    /// How often the way to a server was closed, because it was lost or late.
    pub closed: u64,
    /// Permits whose release failed and is going to be retried.
    pub returning: usize,
}

/// How one server is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Where it is.
    pub address: String,
    /// `None` if it is in use; otherwise why not.
    pub trouble: Option<String>,
    /// How long its last answer took.
    pub round_trip: Duration,
}
