//! The slots of a cluster, as one of its nodes sees them.

use std::{collections::BTreeMap, sync::Arc};

use pacegate_testkit::{SLOTS, slot_of};

/// The view of one node.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// The number of this node.
    me: usize,
    /// Host and port of each node.
    addresses: Arc<Vec<(String, u16)>>,
    /// The node of each slot.
    owners: Vec<usize>,
    /// Slots that move to another node.
    migrating: BTreeMap<u16, usize>,
    /// Slots that move to this node.
    importing: BTreeMap<u16, usize>,
    /// The node refuses all keys, because a part of the cluster is missing.
    pub is_down: bool,
}

/// Keys that the commands of a script may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    /// Any.
    #[default]
    All,
    /// Those that exist: the slot moves to another node.
    Existing,
    /// Single ones, or those that exist: the slot moves to this node.
    Single,
}

impl ClusterView {
    /// Creates the view of node `me`: all slots belong to the first `masters` nodes, in equal ranges.
    pub fn new(me: usize, masters: usize, addresses: Arc<Vec<(String, u16)>>) -> Self {
        let owners = (0..SLOTS).map(|slot| slot * masters / SLOTS).collect();
        let (migrating, importing) = (BTreeMap::new(), BTreeMap::new());
        Self { me, addresses, owners, migrating, importing, is_down: false }
    }

    /// Returns the node of a slot.
    pub fn owner(&self, slot: u16) -> usize {
        self.owners[usize::from(slot)]
    }

    /// Returns whether this node has keys of a slot, or gets them.
    pub fn owns(&self, slot: u16) -> bool {
        self.owner(slot) == self.me || self.importing.contains_key(&slot)
    }

    /// Records that a slot belongs to a node.
    pub fn assign(&mut self, slot: u16, owner: usize) {
        self.owners[usize::from(slot)] = owner;
        self.importing.remove(&slot);
        self.migrating.remove(&slot);
    }

    /// Records that all slots of a node belong to another one, after a failover.
    pub fn replace(&mut self, old: usize, new: usize) {
        for owner in self.owners.iter_mut().filter(|owner| **owner == old) {
            *owner = new;
        }
    }

    /// Starts to move a slot from this node.
    pub fn start_export(&mut self, slot: u16, to: usize) {
        self.migrating.insert(slot, to);
    }

    /// Starts to move a slot to this node.
    pub fn start_import(&mut self, slot: u16, from: usize) {
        self.importing.insert(slot, from);
    }

    /// Checks that this node may run a command with these keys. Otherwise returns the error reply.
    pub(super) fn admit(
        &self,
        keys: &[&[u8]],
        is_asking: bool,
        exists: impl Fn(&[u8]) -> bool,
    ) -> Result<Access, String> {
        let Some(slot) = keys.first().map(|key| slot_of(key)) else { return Ok(Access::All) };
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Err("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        if self.is_down {
            return Err("CLUSTERDOWN The cluster is down".to_owned());
        }
        let owner = self.owner(slot);
        let missing = keys.iter().filter(|key| !exists(key)).count();
        let has_several = keys.iter().any(|key| *key != keys[0]);
        let redirect = |code: &str, node: usize| {
            let (host, port) = &self.addresses[node];
            Err(format!("{code} {slot} {host}:{port}"))
        };
        let try_again =
            || Err("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        if owner == self.me {
            return match self.migrating.get(&slot) {
                None => Ok(Access::All),
                Some(_) if missing == 0 => Ok(Access::Existing),
                Some(&to) if missing == keys.len() => redirect("ASK", to),
                Some(_) => try_again(),
            };
        }
        match is_asking && self.importing.contains_key(&slot) {
            true if has_several && missing > 0 => try_again(),
            true => Ok(Access::Single),
            false => redirect("MOVED", owner),
        }
    }

    /// Returns the ranges of slots, each with its node.
    pub(super) fn ranges(&self) -> Vec<(usize, usize, usize)> {
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
        for (slot, &owner) in self.owners.iter().enumerate() {
            match ranges.last_mut() {
                Some((_, last, known)) if *known == owner => *last = slot,
                _ => ranges.push((slot, slot, owner)),
            }
        }
        ranges
    }

    /// Returns host and port of a node.
    pub(super) fn address(&self, node: usize) -> &(String, u16) {
        &self.addresses[node]
    }
}
