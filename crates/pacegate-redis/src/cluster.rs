//! The slot map of a cluster.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use pacegate::StoreError;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    cell::SLOTS,
    link::{Access, Address, CONNECT_TIMEOUT, Link},
    resolver::Resolver,
    worker::{Common, NodeWorker},
};

/// The servers of a cluster, with a worker for each.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    access: Access,
    common: Arc<Common>,
    workers: Mutex<BTreeMap<Address, Arc<NodeWorker>>>,
    /// The worker of each slot, if known.
    slots: ArcSwap<Vec<Option<Arc<NodeWorker>>>>,
    changed: Notify,
    /// The server and the error of the last attempt to read the map, if it failed.
    map_error: Mutex<Option<(Address, String)>>,
    this: Weak<Self>,
}

/// Interval of reading the map while all servers can be used.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(100);

const NO_SERVER: &str = "no server of the cluster is known for the slot";

pub(crate) fn no_server() -> StoreError {
    StoreError::Unavailable(NO_SERVER.to_owned())
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, access: Access, common: Arc<Common>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            seeds,
            access,
            common,
            workers: Mutex::default(),
            slots: ArcSwap::from_pointee(vec![None; usize::from(SLOTS)]),
            changed: Notify::new(),
            map_error: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Starts the task that refreshes the slot map. It ends with the cluster.
    pub(crate) fn start(self: &Arc<Self>) {
        tokio::spawn(keep_fresh(Arc::downgrade(self)));
    }

    pub(crate) fn worker_of(&self, slot: u16) -> Option<Arc<NodeWorker>> {
        self.slots.load().get(usize::from(slot)).cloned().flatten()
    }

    /// Returns the worker of a slot. If it is not known, the map is read again, and the error contains the cause.
    pub(crate) fn worker_of_or_refresh(&self, slot: u16) -> Result<Arc<NodeWorker>, StoreError> {
        self.worker_of(slot).ok_or_else(|| {
            self.refresh_soon();
            StoreError::Unavailable(self.error())
        })
    }

    /// Returns the error of the last attempt to read the map, or else of a server that cannot be used.
    pub(crate) fn error(&self) -> String {
        let closed = || self.workers().into_iter().find(|worker| !worker.is_open());
        match self.map_error() {
            Some((address, error)) => format!("{address}: {error}"),
            None => closed().map_or(NO_SERVER.to_owned(), |worker| worker.error()),
        }
    }

    pub(crate) fn map_error(&self) -> Option<(Address, String)> {
        self.map_error.lock().clone()
    }

    pub(crate) fn workers(&self) -> Vec<Arc<NodeWorker>> {
        self.workers.lock().values().cloned().collect()
    }

    /// Returns the worker for a server, which is created if necessary.
    pub(crate) fn worker(&self, address: &Address) -> Arc<NodeWorker> {
        let mut workers = self.workers.lock();
        let worker = workers.entry(address.clone()).or_insert_with(|| {
            let resolver = Resolver::Fixed(address.clone(), self.access.clone());
            let worker = NodeWorker::new(self.common.clone(), resolver, self.this.clone());
            worker.start();
            worker
        });
        worker.clone()
    }

    /// Records that a slot has moved, and reads the map again, which is probably outdated.
    pub(crate) fn moved(&self, slot: Option<u16>, address: &Address) -> Arc<NodeWorker> {
        let worker = self.worker(address);
        let is_known =
            |slot| self.worker_of(slot).is_some_and(|known| Arc::ptr_eq(&known, &worker));
        if let Some(slot) = slot.filter(|&slot| !is_known(slot)) {
            self.slots.rcu(|slots| {
                let mut slots = Vec::clone(slots);
                slots[usize::from(slot)] = Some(worker.clone());
                slots
            });
        }
        self.refresh_soon();
        worker
    }

    pub(crate) fn refresh_soon(&self) {
        self.changed.notify_one();
    }

    /// Reads the map from the first server that answers.
    pub(crate) async fn refresh(&self) {
        let (open, closed): (Vec<_>, Vec<_>) =
            self.workers.lock().clone().into_iter().partition(|(_, worker)| worker.is_open());
        let [open, closed] =
            [open, closed].map(|workers| workers.into_iter().map(|(address, _)| address));
        for address in open.chain(self.seeds.iter().cloned()).chain(closed) {
            let problem = match timeout(2 * CONNECT_TIMEOUT, self.query(&address)).await {
                Ok(Ok(Some(ranges))) => return self.apply(ranges),
                Ok(Ok(None)) => "the server has no slot map".to_owned(),
                Ok(Err(error)) => format!("cannot connect: {error}"),
                Err(_) => "the server does not answer".to_owned(),
            };
            *self.map_error.lock() = Some((address, problem));
        }
    }

    async fn query(&self, seed: &Address) -> Result<Option<Vec<Range>>, RedisError> {
        let mut link = Link::open(seed, &self.access, false).await?;
        read(&mut link, seed).await
    }

    fn apply(&self, ranges: Vec<Range>) {
        let mut slots = vec![None; usize::from(SLOTS)];
        for range in &ranges {
            let worker = self.worker(&range.master);
            let (first, last) = (usize::from(range.first), usize::from(range.last));
            if let Some(slots) = slots.get_mut(first..=last) {
                slots.fill(Some(worker));
            }
        }
        self.slots.store(Arc::new(slots));
        *self.map_error.lock() = None;
        // Removes workers of servers without slots, unless a slot is migrating to one.
        let is_used = |address: &Address| ranges.iter().any(|range| range.master == *address);
        self.workers.lock().retain(|address, worker| {
            let keep = is_used(address) || worker.is_open();
            if !keep {
                worker.shut_down();
            }
            keep
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.workers.lock().values().for_each(|worker| worker.shut_down());
        self.changed.notify_one();
    }
}

/// A range of slots and its master.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Address,
}

/// Reads the slot map of the server at `seed`; `None` if it is empty or unreadable.
pub(crate) async fn read(
    link: &mut Link,
    seed: &Address,
) -> Result<Option<Vec<Range>>, RedisError> {
    let mut command = redis::cmd("CLUSTER");
    let reply = command.arg("SLOTS").query_async(link.connection()).await?;
    let Value::Array(rows) = reply else { return Ok(None) };
    let ranges: Option<Vec<Range>> = rows.iter().map(|row| range(row, seed)).collect();
    Ok(ranges.filter(|ranges| !ranges.is_empty()))
}

/// Parses a row of CLUSTER SLOTS: first, last, host and port of the master, then replicas.
fn range(row: &Value, seed: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let (Value::Int(first), Value::Int(last), Value::Array(master)) =
        (row.first()?, row.get(1)?, row.get(2)?)
    else {
        return None;
    };
    let host = match master.first()? {
        Value::Nil => "",
        Value::BulkString(name) => std::str::from_utf8(name).ok()?,
        _ => return None,
    };
    let Value::Int(port) = master.get(1)? else { return None };
    let master = located(host, u16::try_from(*port).ok()?, seed)?;
    Some(Range { first: u16::try_from(*first).ok()?, last: u16::try_from(*last).ok()?, master })
}

/// Parses `host:port` in a reply of the server at `from`.
pub(crate) fn parse(address: &str, from: &Address) -> Option<Address> {
    let (host, port) = address.rsplit_once(':')?;
    located(host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?, from)
}

/// Normalizes the address of a server. One without a host is on the host of the server that reported it.
fn located(host: &str, port: u16, from: &Address) -> Option<Address> {
    if matches!(host, "" | "?") {
        let Address::Tcp(host, _) = from else { return None };
        return Some(Address::Tcp(host.clone(), port));
    }
    let host = host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |ip| ip.to_string());
    Some(Address::Tcp(host, port))
}

/// Reads the map when it may have changed, and periodically.
async fn keep_fresh(cluster: Weak<Cluster>) {
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        strong.refresh().await;
        let workers = strong.workers();
        let healthy = !workers.is_empty() && workers.iter().all(|worker| worker.is_open());
        sleep(MIN_REFRESH_INTERVAL).await;
        let rest = if healthy { REFRESH_INTERVAL } else { 2 * MIN_REFRESH_INTERVAL };
        drop(timeout(rest, strong.changed.notified()).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_one_address() {
        let from = Address::Tcp("db.example".to_owned(), 7_000);
        for (text, address) in [
            ("10.0.0.1:6379", "10.0.0.1:6379"),
            ("::1:7000", "[::1]:7000"),
            ("[::1]:7000", "[::1]:7000"),
            ("0:0:0:0:0:0:0:1:7000", "[::1]:7000"),
            ("other.example:7000", "other.example:7000"),
            (":6380", "db.example:6380"),
            ("?:6380", "db.example:6380"),
        ] {
            assert_eq!(parse(text, &from).unwrap().to_string(), address, "{text}");
        }
        for text in ["", "host", "host:", "host:x", "host:65536"] {
            assert_eq!(parse(text, &from), None, "{text}");
        }
        assert_eq!(parse(":6380", &Address::Unix("/run/redis.sock".into())), None);
    }

    #[test]
    fn the_slot_map_and_redirections_normalize_hosts_alike() {
        let seed = Address::Tcp("::1".to_owned(), 7_000);
        let row = |host: Value| {
            let master = Value::Array(vec![host, Value::Int(7_001)]);
            let row = Value::Array(vec![Value::Int(0), Value::Int(9), master]);
            range(&row, &seed).unwrap().master.to_string()
        };
        let named = |name: &str| row(Value::BulkString(name.as_bytes().to_vec()));
        for (master, address) in [
            (row(Value::Nil), "[::1]:7001"),
            (named(""), "[::1]:7001"),
            (named("?"), "[::1]:7001"),
            (named("0:0::1"), "[::1]:7001"),
            (named("10.0.0.1"), "10.0.0.1:7001"),
        ] {
            assert_eq!(master, address);
        }
    }
}
