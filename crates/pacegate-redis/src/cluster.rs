//! Which server of a cluster has which slot.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    cell::SLOTS,
    lane::{Common, Lane},
    link::{Access, Address, CONNECT_TIMEOUT, Link},
    resolver::Resolver,
};

/// The servers of a cluster, with a lane to each.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    access: Access,
    common: Arc<Common>,
    lanes: Mutex<HashMap<Address, Arc<Lane>>>,
    /// One for each slot that is known.
    slots: ArcSwap<Vec<Option<Arc<Lane>>>>,
    changed: Notify,
    this: Weak<Self>,
}

/// The map is read again this often even if nothing seems to have changed.
const REFRESH: Duration = Duration::from_secs(10);
/// And not more often than this if something has.
const PAUSE: Duration = Duration::from_millis(100);

/// Said where nobody is known to have a slot.
pub(crate) const NO_SERVER: &str = "no server of the cluster is known to have the slot";

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, access: Access, common: Arc<Common>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            seeds,
            access,
            common,
            lanes: Mutex::default(),
            slots: ArcSwap::from_pointee(vec![None; usize::from(SLOTS)]),
            changed: Notify::new(),
            this: this.clone(),
        })
    }

    /// Starts the task that keeps the map of slots true. It ends with the cluster.
    pub(crate) fn start(self: &Arc<Self>) {
        tokio::spawn(keep_true(Arc::downgrade(self)));
    }

    pub(crate) fn of_slot(&self, slot: u16) -> Option<Arc<Lane>> {
        self.slots.load().get(usize::from(slot)).cloned().flatten()
    }

    /// [`Cluster::of_slot`] for somebody who needs it now: if nobody is known to have the slot, the map is read again.
    pub(crate) fn of_slot_now(&self, slot: u16) -> Option<Arc<Lane>> {
        let lane = self.of_slot(slot);
        if lane.is_none() {
            self.refresh_soon();
        }
        lane
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().values().cloned().collect()
    }

    /// The lane to a server, made if there is none yet.
    pub(crate) fn lane(&self, address: &Address) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(address.clone()).or_insert_with(|| {
            let resolver = Resolver::Fixed(address.clone(), self.access.clone());
            let lane = Lane::new(self.common.clone(), resolver, self.this.clone());
            lane.start();
            lane
        });
        lane.clone()
    }

    /// A server said that a slot has moved. The rest of the map is probably out of date, too.
    pub(crate) fn moved(&self, slot: Option<u16>, address: &Address) -> Arc<Lane> {
        let lane = self.lane(address);
        let is_known = |slot| self.of_slot(slot).is_some_and(|known| Arc::ptr_eq(&known, &lane));
        if let Some(slot) = slot.filter(|&slot| !is_known(slot)) {
            self.slots.rcu(|slots| {
                let mut slots = Vec::clone(slots);
                slots[usize::from(slot)] = Some(lane.clone());
                slots
            });
        }
        self.refresh_soon();
        lane
    }

    pub(crate) fn refresh_soon(&self) {
        self.changed.notify_one();
    }

    /// Reads the map from the first server that answers.
    pub(crate) async fn refresh(&self) -> bool {
        let (open, closed): (Vec<_>, Vec<_>) =
            self.lanes.lock().clone().into_iter().partition(|(_, lane)| lane.is_open());
        let [open, closed] = [open, closed].map(|lanes| lanes.into_iter().map(|(it, _)| it));
        for address in open.chain(self.seeds.iter().cloned()).chain(closed) {
            let asked = timeout(2 * CONNECT_TIMEOUT, self.ask(&address)).await;
            if let Ok(Some(ranges)) = asked {
                self.apply(ranges);
                return true;
            }
        }
        false
    }

    async fn ask(&self, seed: &Address) -> Option<Vec<Range>> {
        let mut link = Link::open(seed, &self.access, false).await.ok()?;
        read(&mut link, seed).await.ok().flatten()
    }

    fn apply(&self, ranges: Vec<Range>) {
        let mut slots = vec![None; usize::from(SLOTS)];
        for range in &ranges {
            let lane = self.lane(&range.master);
            let (first, last) = (usize::from(range.first), usize::from(range.last));
            if let Some(slots) = slots.get_mut(first..=last) {
                slots.fill(Some(lane));
            }
        }
        self.slots.store(Arc::new(slots));
        // Servers that are masters of nothing any more, unless a slot is just on its way to one.
        let is_used = |address: &Address| ranges.iter().any(|range| range.master == *address);
        self.lanes.lock().retain(|address, lane| {
            let keep = is_used(address) || lane.is_open();
            if !keep {
                lane.end();
            }
            keep
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.lanes.lock().values().for_each(|lane| lane.end());
        self.changed.notify_one();
    }
}

/// Slots that one server has.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Address,
}

/// The map as the server at `seed` has it, unless it is empty or cannot be read.
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

/// A row of CLUSTER SLOTS: first, last, the master's host and port, and then replicas.
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

/// `host:port`, as the server at `from` writes it.
pub(crate) fn parse(address: &str, from: &Address) -> Option<Address> {
    let (host, port) = address.rsplit_once(':')?;
    located(host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?, from)
}

/// One spelling for one server. A server that is told without a host, because nobody knows its name, is on the host of
/// the one that told.
fn located(host: &str, port: u16, from: &Address) -> Option<Address> {
    if matches!(host, "" | "?") {
        let Address::Tcp(host, _) = from else { return None };
        return Some(Address::Tcp(host.clone(), port));
    }
    let host = host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |ip| ip.to_string());
    Some(Address::Tcp(host, port))
}

/// Reads the map again whenever it may have changed, and now and then.
async fn keep_true(cluster: Weak<Cluster>) {
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        strong.refresh().await;
        let lanes = strong.lanes();
        let healthy = !lanes.is_empty() && lanes.iter().all(|lane| lane.is_open());
        sleep(PAUSE).await;
        let rest = if healthy { REFRESH } else { 2 * PAUSE };
        let notified = async {
            let changed = strong.changed.notified();
            drop(timeout(rest, changed).await);
        };
        notified.await;
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
    fn the_map_names_hosts_as_redirections_do() {
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
