//! Injects faults until the workload ends, and then ends all of them.

use std::time::Duration;

use pacegate_testkit::Random;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    redis::{Condition, Keyspace},
    scenario::FaultKind,
    world::World,
};

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
        let lasts = Duration::from_millis(random.pick(&[5, 50, 150, 600, 1_200, 2_500]));
        world.trace.event(format_args!("fault: {kind:?}, host {host}, {lasts:?}"));
        let fault =
            Fault { world: world.clone(), host, lasts, random: Random::new(random.number()) };
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
    lasts: Duration,
    random: Random,
}

impl Fault {
    async fn run(mut self, kind: FaultKind) {
        let network = self.world.network.clone();
        match kind {
            FaultKind::Partition => self.partition().await,
            FaultKind::HalfOpen => network.silence(self.host),
            FaultKind::Cut => {
                let bytes = self.random.below(2_000) as usize;
                network.cut_after(self.host, bytes, self.random.one_in(2));
            }
            FaultKind::SlowPath => self.slow_path().await,
            FaultKind::Freeze => {
                network.set_frozen(true);
                sleep(self.lasts).await;
                network.set_frozen(false);
            }
            FaultKind::Restart => self.restart(Keyspace::default()).await,
            FaultKind::Failover => self.fail_over().await,
            FaultKind::Demotion => self.condition(|it, on| it.is_replica = on).await,
            FaultKind::Loading => self.condition(|it, on| it.is_loading = on).await,
            FaultKind::OutOfMemory => self.condition(|it, on| it.is_out_of_memory = on).await,
            FaultKind::ScriptFlush => network.with_redis(|redis| redis.flush_scripts()),
            FaultKind::ServerClockStep => self.step_server_clock(),
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

    async fn partition(&mut self) {
        let (up, down) = self.random.pick(&[(true, true), (true, false), (false, true)]);
        let network = &self.world.network;
        network.change_path(self.host, |path| {
            path.is_blocked_up |= up;
            path.is_blocked_down |= down;
        });
        sleep(self.lasts).await;
        network.change_path(self.host, |path| {
            path.is_blocked_up &= !up;
            path.is_blocked_down &= !down;
        });
    }

    async fn slow_path(&mut self) {
        let least = self.random.pick(&[5, 20, 60, 150]);
        let network = &self.world.network;
        network.change_path(self.host, |path| path.delay = (least, 3 * least));
        sleep(self.lasts).await;
        network.change_path(self.host, |path| path.delay = self.world.scenario.delay);
    }

    /// Restarts the server with these keys, after some time without a server.
    async fn restart(&mut self, keyspace: Keyspace) {
        let network = &self.world.network;
        network.set_down(true);
        network.with_redis(|redis| {
            redis.flush_scripts();
            redis.restore(keyspace);
        });
        self.disturb();
        sleep(self.lasts).await;
        network.set_down(false);
    }

    async fn fail_over(&mut self) {
        let replicated = self.world.network.with_redis(|redis| redis.snapshot());
        sleep(Duration::from_millis(self.random.below(300))).await;
        let skew = self.random.below(20_000) as i64 - 10_000;
        self.restart(replicated).await;
        self.world.server_clock.step(skew);
        self.disturb();
    }

    async fn condition(&mut self, set: impl Fn(&mut Condition, bool)) {
        let network = &self.world.network;
        network.with_redis(|redis| set(&mut redis.condition, true));
        sleep(self.lasts).await;
        network.with_redis(|redis| set(&mut redis.condition, false));
    }

    fn step_server_clock(&mut self) {
        let by = self.draw_step();
        self.world.server_clock.step(by);
        self.disturb();
    }

    fn draw_step(&mut self) -> i64 {
        let most = self.random.pick(&[1_000, 50_000, 1_000_000, 100_000_000]);
        self.random.below(2 * most) as i64 - most as i64
    }

    /// Records that the server lost data or that its clock stepped.
    fn disturb(&self) {
        self.world.network.disturb();
    }
}
