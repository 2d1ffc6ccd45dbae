//! Masters that are lost or replaced.

use std::time::Duration;

use pacegate_testkit::Random;
use tokio::{task::JoinSet, time::sleep};

use super::Fault;
use crate::{
    ledger::{Origin, Region},
    redis::Keyspace,
    servers::Claim,
    world::World,
};

/// The data of a master at some time, as its replica has it.
struct Copy {
    keyspace: Keyspace,
    origins: Vec<(Region, Origin)>,
}

/// What happens to a master that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It stops, and comes back later.
    Crash,
    /// It does not notice for some time that it was replaced.
    CutOff,
    /// An operator replaces it. Nothing is lost until then.
    Planned,
}

impl Fault {
    /// Restarts the master without its keys.
    pub(super) async fn restart(&mut self) {
        let Some(claim) = self.world.servers.claim(self.group) else { return };
        let server = claim.master();
        let with_others = self.random.one_in(2);
        self.restart_with(server, Keyspace::default(), with_others, |world| {
            world.lose_keys(server);
        })
        .await;
    }

    async fn restart_with(
        &self,
        server: usize,
        keyspace: Keyspace,
        with_others: bool,
        record: impl Fn(&World),
    ) {
        let network = &self.world.network;
        network.set_down(server, true);
        network.with_redis(server, |redis| {
            redis.flush_scripts();
            redis.restore(keyspace);
        });
        record(&self.world);
        self.lack(server, with_others).await;
        network.set_down(server, false);
    }

    /// Waits while a server is missing. If the cluster requires all of its servers, the others refuse keys then.
    async fn lack(&self, missing: usize, with_others: bool) {
        let noticed = Duration::from_millis(100).min(self.lasts);
        sleep(noticed).await;
        let others = self.world.servers.nodes().filter(|&node| node != missing && with_others);
        let others: Vec<_> = others.collect();
        let set = |is_down| {
            for &node in &others {
                let view = |redis: &mut crate::redis::Redis| {
                    redis.cluster.iter_mut().for_each(|view| view.is_down = is_down);
                };
                self.world.network.with_redis(node, view);
            }
        };
        set(true);
        sleep(self.lasts - noticed).await;
        set(false);
    }

    /// Lets a replica take over, usually without the last writes.
    pub(super) async fn fail_over(&mut self) {
        let Some(claim) = self.world.servers.claim(self.group) else { return };
        match claim.replica() {
            None => self.fail_over_in_place(&claim).await,
            Some(replica) => {
                let cause = self.random.pick(&[Cause::Crash, Cause::CutOff, Cause::Planned]);
                self.take_over(&claim, replica, cause).await;
            }
        }
    }

    /// Makes the server a replica for some time; with a replica, both change their roles.
    pub(super) async fn demote(&mut self) {
        let Some(claim) = self.world.servers.claim(self.group) else { return };
        match claim.replica() {
            None => self.condition(|it, on| it.is_replica = on).await,
            Some(replica) => self.take_over(&claim, replica, Cause::Planned).await,
        }
    }

    /// The address stays the same. The clock of the new master may differ.
    async fn fail_over_in_place(&mut self, claim: &Claim) {
        let server = claim.master();
        let copy = self.world.replicate(server);
        sleep(Duration::from_millis(self.random.below(300))).await;
        let skew = match self.random.one_in(2) {
            true => self.random.below(20_000) as i64 - 10_000,
            false => 0,
        };
        if skew != 0 {
            self.world.network.clock(server).step(skew);
        }
        let Copy { keyspace, origins } = copy;
        let parent = |origin| Some(origin).filter(|_| skew == 0);
        self.restart_with(server, keyspace, false, |world| {
            for &(region, origin) in &origins {
                world.branch(server, region, parent(origin));
            }
        })
        .await;
    }

    async fn take_over(&mut self, claim: &Claim, replica: usize, cause: Cause) {
        let (old, world) = (claim.master(), self.world.clone());
        let mut copy = world.replicate(old);
        sleep(Duration::from_millis(self.random.below(300))).await;
        match cause {
            Cause::Crash => {
                world.network.set_down(old, true);
                let with_others = self.random.one_in(2);
                self.lack(old, with_others).await;
            }
            Cause::CutOff => {}
            Cause::Planned => copy = world.replicate(old),
        }
        world.trace.event(format_args!("node {replica} replaces {old}: {cause:?}"));
        world.promote(old, replica, copy);
        claim.exchange();
        let mut informed = JoinSet::new();
        for node in world.servers.nodes().filter(|node| ![old, replica].contains(node)) {
            let (world, delay) = (world.clone(), Duration::from_millis(self.random.below(400)));
            informed.spawn(async move {
                sleep(delay).await;
                world.replace_in_view(node, old, replica);
            });
        }
        for sentinel in world.servers.sentinels() {
            let random = Random::new(self.random.number());
            informed.spawn(announce(world.clone(), sentinel, (old, replica), random));
        }
        self.retire(old, replica, cause).await;
        informed.join_all().await;
    }

    /// Makes an old master a replica, some time after it was replaced.
    async fn retire(&mut self, old: usize, new: usize, cause: Cause) {
        let world = &self.world;
        let has_sentinels = world.servers.has_sentinels();
        let unaware = match cause {
            Cause::Crash => {
                sleep(self.lasts).await;
                world.network.set_down(old, false);
                self.random.pick(&[0, 200])
            }
            Cause::Planned if !has_sentinels => 0,
            _ => self.random.pick(&[0, 50, 300, 1_000, 2_500]),
        };
        // A node of a cluster that comes back learns of its replacement before it accepts writes.
        let unaware = if cause == Cause::Crash && !has_sentinels { 0 } else { unaware };
        sleep(Duration::from_millis(unaware)).await;
        world.network.with_redis(old, |redis| redis.condition.is_replica = true);
        world.replace_in_view(old, old, new);
        if has_sentinels {
            world.network.break_all(old);
        }
    }
}

impl World {
    /// Copies the data of a master.
    fn replicate(&self, master: usize) -> Copy {
        let keyspace = self.network.with_redis(master, |redis| redis.snapshot());
        let regions = self.regions_of(master);
        let origin = |region| (region, self.network.with_ledger(|it| it.origin(master, region)));
        Copy { keyspace, origins: regions.into_iter().map(origin).collect() }
    }

    /// Makes a replica with this data the master.
    fn promote(&self, old: usize, new: usize, Copy { keyspace, origins }: Copy) {
        self.network.with_redis(new, |redis| {
            redis.flush_scripts();
            redis.restore(keyspace);
            redis.condition.is_replica = false;
        });
        self.replace_in_view(new, old, new);
        for (region, origin) in origins {
            self.branch(new, region, Some(origin).filter(|_| !self.scenario.with_skew));
        }
        if self.servers.has_sentinels() {
            self.network.with_ledger(|ledger| ledger.promote(self.time.now(), new));
        }
    }

    /// Replaces `old` by `new` in the slots that a node of a cluster knows.
    fn replace_in_view(&self, node: usize, old: usize, new: usize) {
        self.network.with_redis(node, |redis| {
            redis.cluster.iter_mut().for_each(|view| view.replace(old, new));
        });
    }
}

/// A sentinel learns that a node has become the master, and some time later that the failover is complete. Meanwhile,
/// it may stop, so that hosts can ask only those that do not know of it yet.
async fn announce(world: World, sentinel: usize, (old, new): (usize, usize), mut random: Random) {
    let address = world.network.address(new);
    sleep(Duration::from_millis(random.below(1_000))).await;
    world.network.with_sentinel(sentinel, |it| it.promoted = Some(address.clone()));
    let stops = random.one_in(2);
    if stops {
        sleep(Duration::from_millis(random.below(600))).await;
        world.network.set_down(sentinel, true);
    } else {
        world.network.with_ledger(|ledger| ledger.replace(world.time.now(), old));
    }
    sleep(Duration::from_millis(random.below(300))).await;
    world.network.with_sentinel(sentinel, |it| {
        (it.master, it.promoted) = (address, None);
        it.epoch += 1;
    });
    if stops {
        sleep(Duration::from_millis(random.below(1_000))).await;
        world.network.set_down(sentinel, false);
    }
}
