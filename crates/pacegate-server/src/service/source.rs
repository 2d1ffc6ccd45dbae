use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

/// Unauthenticated connections per source address of one listener.
#[derive(Debug)]
pub(crate) struct Sources {
    max: usize,
    /// Addresses with at least one such connection: as many as there are connections at most.
    counts: Mutex<HashMap<Ipv6Addr, usize>>,
}

/// The client of a connection. It counts towards its source address until it is authenticated.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    address: SocketAddr,
    slot: Option<Arc<Slot>>,
}

#[derive(Debug)]
struct Slot {
    sources: Arc<Sources>,
    source: Ipv6Addr,
    is_counted: AtomicBool,
}

impl Sources {
    /// Allows `max` connections for each address.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, counts: Mutex::default() })
    }

    /// Counts a connection. Returns `None` if its address has too many.
    pub(crate) fn admit(self: &Arc<Self>, address: SocketAddr) -> Option<Peer> {
        let source = network(address.ip());
        let mut counts = self.counts.lock();
        let count = counts.entry(source).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        let slot = Slot { sources: self.clone(), source, is_counted: AtomicBool::new(true) };
        Some(Peer { address, slot: Some(Arc::new(slot)) })
    }
}

impl Peer {
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Stops counting the connection towards its address: proxies share one.
    pub(crate) fn authenticated(&self) {
        if let Some(slot) = &self.slot {
            slot.release();
        }
    }
}

/// A client that no limit per address applies to.
impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, slot: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Slot {
    fn release(&self) {
        if !self.is_counted.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut counts = self.sources.counts.lock();
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns the address that clients are counted by. For IPv6 that is the network of 64 bits: one host has all of its
/// addresses.
pub(super) fn network(address: IpAddr) -> Ipv6Addr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 1)
    }

    #[test]
    fn an_address_has_its_share_until_connections_end_or_authenticate() {
        let sources = Sources::new(2);
        let first = sources.admit(address("192.0.2.1")).unwrap();
        let second = sources.admit(address("::ffff:192.0.2.1")).unwrap();
        assert!(sources.admit(address("192.0.2.1")).is_none());
        assert!(sources.admit(address("192.0.2.2")).is_some());
        first.authenticated();
        first.authenticated();
        let third = sources.admit(address("192.0.2.1")).unwrap();
        assert!(sources.admit(address("192.0.2.1")).is_none());
        drop((first, second, third));
        assert!(sources.counts.lock().is_empty());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_source() {
        let sources = Sources::new(1);
        let _first = sources.admit(address("2001:db8::1")).unwrap();
        assert!(sources.admit(address("2001:db8::ffff:2")).is_none());
        assert!(sources.admit(address("2001:db8:0:1::1")).is_some());
    }
}
