//! Injects faults until the workload ends, and then ends all of them.

mod failover;
mod migration;

use std::time::Duration;

use pacegate_testkit::Random;
use tokio::{task::JoinSet, time::sleep};

use crate::{network::Route, redis::Condition, scenario::FaultKind, world::World};

/// Injects faults. Returns their number after the last one has ended.
pub(crate) async fn inject(world: World, mut random: Random) -> usize {
    let end = world.scenario.end;
    let mut running = JoinSet::new();
    let mut count = 0;
    while !world.scenario.faults.is_empty() {
        let pause = random.below(2 * world.scenario.fault_interval);
        sleep(Duration::from_millis(pause)).await;
        if world.time.now() >= end {
            break;
        }
        let kind = random.pick(&world.scenario.faults);
        let host = random.below(world.scenario.hosts as u64) as usize;
        let group = random.below(world.servers.groups() as u64) as usize;
        let lasts = Duration::from_millis(random.pick(&[5, 50, 150, 600, 1_200, 2_500]));
        world.trace.event(format_args!("fault: {kind:?}, host {host}, group {group}, {lasts:?}"));
        let random = Random::new(random.number());
        let fault = Fault { world: world.clone(), host, group, lasts, random };
        running.spawn(fault.run(kind));
        count += 1;
    }
    while running.join_next().await.is_some() {}
    world.network.heal();
    world.trace.event(format_args!("all faults have ended"));
    let now = world.time.now();
    world.history.change(|events| events.healed = now);
    count
}

/// A fault, with its choices.
struct Fault {
    world: World,
    host: usize,
    /// The master and its replica.
    group: usize,
    lasts: Duration,
    random: Random,
}

impl Fault {
    async fn run(mut self, kind: FaultKind) {
        let network = self.world.network.clone();
        match kind {
            FaultKind::Partition => self.partition().await,
            FaultKind::HalfOpen => {
                let route = self.route();
                network.silence(route, self.random.one_in(2));
            }
            FaultKind::Cut => {
                let (route, bytes) = (self.route(), self.random.below(2_000) as usize);
                network.cut_after(route, bytes, self.random.one_in(2));
            }
            FaultKind::SlowPath => self.slow_path().await,
            FaultKind::Freeze => {
                let server = self.any_server();
                network.set_frozen(server, true);
                sleep(self.lasts).await;
                network.set_frozen(server, false);
            }
            FaultKind::Restart => self.restart().await,
            FaultKind::Failover => self.fail_over().await,
            FaultKind::Demotion => self.demote().await,
            FaultKind::Migration => self.migrate().await,
            FaultKind::Loading => self.condition(|it, on| it.is_loading = on).await,
            FaultKind::OutOfMemory => self.condition(|it, on| it.is_out_of_memory = on).await,
            FaultKind::ScriptFlush => {
                network.with_redis(self.master(), |redis| redis.flush_scripts());
            }
            FaultKind::ServerClockStep => {
                let by = self.draw_step();
                network.clock(self.master()).step(by);
                self.disturb_clock();
            }
            FaultKind::HostClockStep => {
                let by = self.draw_step();
                self.world.hosts[self.host].clock.step(by);
            }
            FaultKind::Crash => {
                self.world.crash(self.host);
                sleep(self.lasts).await;
                self.world.start_host(self.host, Random::new(self.random.number()));
            }
        }
    }

    fn master(&self) -> usize {
        self.world.servers.master(self.group)
    }

    /// Returns the master, or sometimes any other server.
    fn any_server(&mut self) -> usize {
        match self.world.servers.count() {
            count @ 2.. if self.random.one_in(4) => self.random.below(count as u64) as usize,
            _ => self.master(),
        }
    }

    /// Returns the paths of the host to one server, or to all of them.
    fn route(&mut self) -> Route {
        let is_one = self.world.servers.count() > 1 && self.random.one_in(2);
        Route { host: self.host, server: is_one.then(|| self.any_server()) }
    }

    async fn partition(&mut self) {
        let (up, down) = self.random.pick(&[(true, true), (true, false), (false, true)]);
        let route = self.route();
        let network = &self.world.network;
        network.change_paths(route, |path| {
            path.is_blocked_up |= up;
            path.is_blocked_down |= down;
        });
        sleep(self.lasts).await;
        network.change_paths(route, |path| {
            path.is_blocked_up &= !up;
            path.is_blocked_down &= !down;
        });
    }

    async fn slow_path(&mut self) {
        // A little below the deadline, a round trip is in time, but not a second one.
        let deadline = self.world.scenario.deadline.as_millis() as u64;
        let least = self.random.pick(&[5, 20, 60, 150]);
        let delay = match self.random.one_in(2) {
            true => (least, 3 * least),
            false => (deadline * 3 / 10, deadline * 9 / 20),
        };
        let route = self.route();
        let network = &self.world.network;
        network.change_paths(route, |path| path.delay = delay);
        for _ in 0..self.random.below(4) {
            sleep(self.lasts / 4).await;
            network.with_redis(self.master(), |redis| redis.flush_scripts());
        }
        sleep(self.lasts / 4).await;
        network.change_paths(route, |path| path.delay = self.world.scenario.delay);
    }

    async fn condition(&mut self, set: impl Fn(&mut Condition, bool)) {
        let (network, server) = (&self.world.network, self.master());
        network.with_redis(server, |redis| set(&mut redis.condition, true));
        sleep(self.lasts).await;
        network.with_redis(server, |redis| set(&mut redis.condition, false));
    }

    fn draw_step(&mut self) -> i64 {
        let most = self.random.pick(&[1_000, 50_000, 1_000_000, 100_000_000]);
        self.random.below(2 * most) as i64 - most as i64
    }

    /// Records that the clock of the master has stepped, which other nodes may share. An old master may still be used.
    fn disturb_clock(&self) {
        let servers = &self.world.servers;
        let nodes = match self.world.scenario.with_skew {
            true => vec![self.master()],
            // The last lineage of a region is that of its master.
            false => servers.nodes().chain(servers.masters()).collect(),
        };
        nodes.into_iter().for_each(|node| self.world.start_lineage(node));
    }
}
