//! Decisions during and after server failures.

mod cluster;
mod connection;
mod load;
mod permits;
mod refusals;
mod sentinel;
mod server;

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use pacegate::{
    Decision, Limit, Policy, PolicySet, Request, SharedLimiter,
    policy::FailureMode::{self, Closed, Open},
};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Server, eventually};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Runtime;

use crate::kit::{PATIENT, two_threads};
use load::Load;

/// Shorter than the default, so that faults are detected sooner.
const DEADLINE: Duration = Duration::from_millis(20);
/// Maximum time until the store is used again after a fault.
const RETURN: Duration = Duration::from_secs(2);
/// Units that a process may admit with the failure mode `local`.
const SHARE: usize = 10;
/// The period of the limit for which each window is checked.
const PERIOD: Duration = Duration::from_millis(500);
const AMOUNT: u64 = 20;

/// Held by tests that measure latency, and by tests that would disturb them.
static QUIET: Mutex<()> = Mutex::new(());

/// Limiters over one store, one for each failure mode.
struct Limiters {
    store: RedisStore,
    /// Denies if the store is unavailable; has enough units that the store never denies.
    closed: SharedLimiter,
    /// The same, but admits if the store is unavailable.
    open: SharedLimiter,
    /// The same, but admits up to [`SHARE`].
    local: SharedLimiter,
    /// 100 units for each key, in a window longer than any test.
    hundred: SharedLimiter,
    /// [`AMOUNT`] units in each window of [`PERIOD`].
    windows: SharedLimiter,
    runtime: Runtime,
    _quiet: MutexGuard<'static, ()>,
}

impl Limiters {
    /// Connects with [`DEADLINE`].
    fn connect(url: &str) -> Self {
        let quiet = QUIET.lock();
        let runtime = two_threads();
        let builder = RedisStore::builder(url).unwrap().deadline(DEADLINE);
        let store = runtime.block_on(builder.connect()).unwrap();
        Self::over(store, runtime, quiet)
    }

    /// Connects with a long deadline.
    fn connect_patiently(url: &str) -> Self {
        let quiet = QUIET.lock();
        let runtime = two_threads();
        let builder = RedisStore::builder(url).unwrap().deadline(PATIENT);
        let store = runtime.block_on(builder.connect()).unwrap();
        Self::over(store, runtime, quiet)
    }

    /// Connects in the background, with [`DEADLINE`].
    fn connect_later(url: &str) -> Self {
        let quiet = QUIET.lock();
        let runtime = two_threads();
        let builder = RedisStore::builder(url).unwrap().deadline(DEADLINE);
        let store = runtime.block_on(async { builder.connect_later() });
        Self::over(store, runtime, quiet)
    }

    fn over(store: RedisStore, runtime: Runtime, quiet: MutexGuard<'static, ()>) -> Self {
        let much = Limit::new(1_000_000, Duration::from_secs(1_000 * 3_600)).unwrap();
        let hundred = Limit::new(100, Duration::from_secs(1_000 * 3_600)).unwrap();
        let window = Limit::new(AMOUNT, PERIOD).unwrap();
        let share = NonZeroU32::new(1_000_000 / SHARE as u32).unwrap();
        let local = FailureMode::Local { numerator: 1, denominator: share };
        Self {
            closed: limiter(&store, "closed", much, Closed),
            open: limiter(&store, "open", much, Open),
            local: limiter(&store, "local", much, local),
            hundred: limiter(&store, "hundred", hundred, Closed),
            windows: limiter(&store, "windows", window, Closed),
            store,
            runtime,
            _quiet: quiet,
        }
    }

    /// Starts constant load on all limiters.
    fn load(&self) -> Load {
        Load::start(self)
    }

    fn check(&self, limiter: &SharedLimiter, key: &str) -> Decision {
        self.runtime.block_on(limiter.check(key)).unwrap()
    }

    fn is_degraded(&self) -> bool {
        self.check(&self.closed, "busy").is_degraded()
    }

    fn wait_until_degraded(&self) {
        eventually(RETURN, "failure modes apply", || self.is_degraded());
    }

    /// Waits for the store after the end of a fault; returns the time that it took.
    fn wait_until_back(&self) -> Duration {
        self.wait_for_store(RETURN)
    }

    fn wait_for_store(&self, most: Duration) -> Duration {
        let (start, mut trouble) = (now(), String::new());
        eventually(most, "the store is in use again", || {
            let back = !self.is_degraded();
            if !back && self.trouble() != trouble {
                trouble = self.trouble();
                println!("after {:?}: {trouble}", start.elapsed());
            }
            back
        });
        start.elapsed()
    }

    /// Returns the errors of all servers.
    fn trouble(&self) -> String {
        let servers = self.store.stats().servers;
        let troubles = servers.into_iter().filter_map(|server| server.trouble);
        troubles.collect::<Vec<_>>().join("; ")
    }

    /// Asserts that a new key admits exactly 100. If the machine pauses for longer than the deadline, failure modes
    /// apply; such an attempt only proves that no more are admitted.
    fn assert_exact(&self) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let fresh = |_| {
            self.wait_for_store(PATIENT);
            let key = format!("fresh-{}", NEXT.fetch_add(1, Relaxed));
            self.spend(&self.hundred, &key, 130)
        };
        let clean = (0..50).map(fresh).find(|&(admitted, degraded)| {
            assert!(admitted <= 100, "{admitted} of 100 admitted");
            degraded == 0
        });
        assert_eq!(clean, Some((100, 0)), "{}", self.trouble());
    }

    /// Asserts that the window after the end of a fault is exact for a key in constant use.
    fn assert_window_exact(&self, server: &Server) {
        let mut client = server.connect().unwrap();
        let mut window = || {
            let time = client.command(&["TIME"]).unwrap();
            let [seconds, micros] = [0, 1].map(|place| time.items()[place].int());
            (seconds * 1_000_000 + micros) / PERIOD.as_micros() as i64
        };
        for _ in 0..20 {
            self.wait_for_store(PATIENT);
            let last = window();
            eventually(2 * PERIOD, "the next window", || window() > last);
            let (admitted, degraded) = self.spend(&self.windows, "busy", 2 * AMOUNT);
            if degraded == 0 && window() == last + 1 {
                return assert_eq!(admitted, AMOUNT);
            }
        }
        panic!("no window without interruption: {}", self.trouble());
    }

    /// Checks `times` times, ten at a time; returns the numbers of admitted and of degraded decisions.
    fn spend(&self, limiter: &SharedLimiter, key: &str, times: u64) -> (u64, u64) {
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..10 {
                let (limiter, key) = (limiter.clone(), key.to_owned());
                tasks.spawn(async move {
                    let mut counts = (0, 0);
                    for _ in 0..times / 10 {
                        let decision = limiter.check(&key).await.unwrap();
                        counts.0 += u64::from(decision.is_allowed());
                        counts.1 += u64::from(decision.is_degraded());
                    }
                    counts
                });
            }
            let counts = tasks.join_all().await;
            counts.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        })
    }
}

fn limiter(store: &RedisStore, name: &str, limit: Limit, mode: FailureMode) -> SharedLimiter {
    let policy = Policy::new(name, [limit]).per([Request::KEY]).failing(mode);
    SharedLimiter::new(store.clone(), PolicySet::new([policy]).unwrap())
}

#[expect(clippy::disallowed_methods, reason = "the tests measure latency")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the number of script calls of a server.
fn scripts_run(server: &Server) -> u64 {
    let stats = server.info("cmdstat_evalsha").unwrap_or_default();
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}
