//! Slots that move to another node of a cluster, key by key.

use std::time::Duration;

use tokio::{task::JoinSet, time::sleep};

use super::Fault;
use crate::{ledger::Region, world::World};

impl Fault {
    pub(super) async fn migrate(&mut self) {
        let regions = self.world.network.with_ledger(|ledger| ledger.regions().to_vec());
        let slot = self.random.pick(&regions);
        let servers = &self.world.servers;
        let owner = (0..servers.groups()).find(|&group| self.owns(servers.master(group), slot));
        let Some(owner) = owner else { return };
        let others = servers.groups() as u64 - 1;
        let target = (owner + 1 + self.random.below(others) as usize) % servers.groups();
        let (Some(from), Some(to)) = (servers.claim(owner), servers.claim(target)) else { return };
        let (from, to) = (from.master(), to.master());
        self.world.trace.event(format_args!("slot {slot} moves from node {from} to {to}"));
        self.start_move(slot, from, to);
        let pause = self.random.pick(&[1, 5, 30, 150, 400]);
        self.move_keys(slot, (from, to), pause).await;
        self.end_move(slot, from, to).await;
    }

    fn owns(&self, node: usize, slot: Region) -> bool {
        self.world.network.with_redis(node, |redis| {
            redis.cluster.as_ref().is_some_and(|view| view.owner(slot) == node)
        })
    }

    fn start_move(&self, slot: Region, from: usize, to: usize) {
        let network = &self.world.network;
        network.with_redis(to, |redis| {
            redis.cluster.iter_mut().for_each(|view| view.start_import(slot, from));
        });
        network.with_redis(from, |redis| {
            redis.cluster.iter_mut().for_each(|view| view.start_export(slot, to));
        });
        match self.world.scenario.with_skew {
            // To the keys, another clock is a step.
            true => self.world.branch(to, slot, None),
            false => network.with_ledger(|ledger| {
                let origin = ledger.origin(from, slot);
                ledger.continue_on(to, slot, origin);
            }),
        }
    }

    async fn move_keys(&mut self, slot: Region, (from, to): (usize, usize), pause: u64) {
        let network = self.world.network.clone();
        loop {
            sleep(Duration::from_millis(self.random.below(pause + 1))).await;
            if !network.is_available(from) || !network.is_available(to) {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            let keys = network.with_redis(from, |redis| redis.keys_in_slot(slot));
            if keys.is_empty() {
                return;
            }
            let key = &keys[self.random.below(keys.len() as u64) as usize];
            network.move_key(key, from, to);
            if self.world.scenario.with_skew {
                let now = self.world.time.now();
                network.with_ledger(|ledger| ledger.disturb(now, slot));
            }
        }
    }

    /// Announces the new owner to all nodes. It learns of it first.
    async fn end_move(&mut self, slot: Region, from: usize, to: usize) {
        self.assign(to, slot, to);
        sleep(Duration::from_millis(self.random.below(5))).await;
        self.assign(from, slot, to);
        let mut informed = JoinSet::new();
        for node in self.world.servers.nodes().filter(|node| ![from, to].contains(node)) {
            let (world, delay) = (self.world.clone(), self.random.below(400));
            informed.spawn(inform(world, node, slot, to, delay));
        }
        informed.join_all().await;
    }

    fn assign(&self, node: usize, slot: Region, owner: usize) {
        self.world.assign(node, slot, owner);
    }
}

async fn inform(world: World, node: usize, slot: Region, owner: usize, delay: u64) {
    sleep(Duration::from_millis(delay)).await;
    world.assign(node, slot, owner);
}

impl World {
    fn assign(&self, node: usize, slot: Region, owner: usize) {
        self.network.with_redis(node, |redis| {
            redis.cluster.iter_mut().for_each(|view| view.assign(slot, owner));
        });
    }
}
