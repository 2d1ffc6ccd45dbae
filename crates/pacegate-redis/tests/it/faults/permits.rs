//! Permits whose acquire was never answered, and permits that are returned while the server is unreachable.

use std::{future::Future, pin::pin, task::Context, time::Duration};

use pacegate::{
    Charge, KeyRef, Limit, Policy, PolicySet, Request, SharedLimiter, policy::FailureMode,
};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Cluster, Flavor, Proxy, Server, eventually};
use tokio::runtime::Runtime;

use crate::kit::{PATIENT, two_threads};

/// Far above the response time of a connected server, far below [`PATIENT`].
const DEADLINE: Duration = Duration::from_millis(500);
const DELAY: Duration = Duration::from_secs(1);
/// Permits expire after an hour.
const LIMIT: &str = "5/hour concurrency";
const KEY: &str = "alice";

/// A limiter behind a proxy, which fails closed.
struct Setup {
    server: Server,
    proxy: Proxy,
    store: RedisStore,
    limiter: SharedLimiter,
    runtime: Runtime,
}

impl Setup {
    fn new(flavor: Flavor) -> Self {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let runtime = two_threads();
        let builder = RedisStore::builder(&proxy.url()).unwrap().deadline(DEADLINE);
        let store = runtime.block_on(builder.connect()).unwrap();
        let limiter = limiter(&store, FailureMode::Closed);
        let setup = Self { server, proxy, store, limiter, runtime };
        // The server knows the scripts from here on, and runs them on the first attempt.
        let first = setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
        // Not dropped: the answer to a release in the background might be cut off by the test.
        setup.runtime.block_on(first.into_result().unwrap().release()).unwrap();
        setup.assert_none_held();
        setup
    }

    fn wait_until_connected(&self) {
        eventually(PATIENT, "the store is connected", || self.store.is_connected());
    }

    /// Permits that the server holds, counted by the server.
    fn held(&self) -> i64 {
        let keys = self.server.command(&["KEYS", "pg:*"]);
        keys.items().iter().map(|key| self.server.command(&["ZCARD", &key.text()]).int()).sum()
    }

    fn assert_none_held(&self) {
        eventually(PATIENT, "no permit is held", || self.held() == 0);
    }

    /// Asserts that exactly five permits are free.
    fn assert_all_free(&self) {
        self.wait_until_connected();
        self.assert_none_held();
        let acquire = || self.runtime.block_on(self.limiter.acquire(KEY)).unwrap();
        let permits: Vec<_> = (0..5).map(|_| acquire().into_result().unwrap()).collect();
        assert!(acquire().permit.is_none());
        drop(permits);
        self.assert_none_held();
    }

    /// Runs a future until the server has admitted its request, then drops it. The answers do not come before the
    /// deadline of the release, either.
    fn drop_when_admitted<F: Future>(&self, ask: impl Fn() -> F) {
        let _entered = self.runtime.enter();
        let mut admitted = false;
        while !admitted {
            self.wait_until_connected();
            self.proxy.set_delay(DELAY);
            let (before, mut future) = (self.held(), pin!(ask()));
            let mut context = Context::from_waker(std::task::Waker::noop());
            // On a busy machine the circuit breaker may have opened before the request was sent.
            if future.as_mut().poll(&mut context).is_pending() {
                let sent = || self.held() > before || !self.store.is_connected();
                eventually(PATIENT, "the request was sent", sent);
                admitted = self.held() > before;
            }
            let is_open = || !self.store.is_connected();
            eventually(PATIENT, "the circuit breaker opened", is_open);
            self.proxy.set_delay(Duration::ZERO);
        }
    }
}

fn limiter(store: &RedisStore, mode: FailureMode) -> SharedLimiter {
    let limit: Limit = LIMIT.parse().unwrap();
    let policy = Policy::new("jobs", [limit]).per([Request::KEY]).failing(mode);
    SharedLimiter::new(store.clone(), PolicySet::new([policy]).unwrap())
}

fn charge(permit: u128) -> Charge<'static> {
    let charge =
        Charge::new("jobs".parse().unwrap(), KeyRef::new(KEY.as_bytes()), LIMIT.parse().unwrap());
    charge.holding(permit)
}

#[test]
fn late_acquires_return_their_permits() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        for _ in 0..5 {
            setup.wait_until_connected();
            setup.proxy.set_delay(DELAY);
            let late = setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
            assert!(late.decision.is_degraded() && late.permit.is_none());
            setup.proxy.set_delay(Duration::ZERO);
        }
        setup.assert_all_free();
    }
}

/// As the server does: charges with a given permit id.
#[test]
fn late_verdicts_return_their_permits() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        for _ in 0..5 {
            setup.wait_until_connected();
            setup.proxy.set_delay(DELAY);
            let charges = [charge(setup.limiter.charges().new_permit_id())];
            let late = setup
                .runtime
                .block_on(setup.limiter.charges().check_batch(&charges, None))
                .unwrap();
            assert!(late.decision.is_degraded() && !late.decision.is_allowed());
            setup.proxy.set_delay(Duration::ZERO);
        }
        setup.assert_all_free();
    }
}

#[test]
fn acquires_with_a_lost_answer_return_their_permits() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        for _ in 0..5 {
            setup.wait_until_connected();
            setup.proxy.cut_replies_after(0);
            let lost = setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
            assert!(lost.decision.is_degraded() && lost.permit.is_none());
        }
        setup.assert_all_free();
    }
}

/// A server that does not answer for longer than a connection is kept: the permit is taken when the server continues,
/// and returned over the next connection.
#[test]
fn acquires_at_a_hanging_server_return_their_permits() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        setup.server.pause();
        let late = setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
        assert!(late.decision.is_degraded() && late.permit.is_none());
        let given_up = || {
            let servers = setup.store.stats().servers;
            servers[0].trouble.as_deref().is_some_and(|trouble| trouble.contains("cannot connect"))
        };
        eventually(PATIENT, "the connection was given up", given_up);
        setup.server.resume();
        setup.assert_all_free();
    }
}

#[test]
fn dropped_acquires_return_their_permits() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        for _ in 0..3 {
            setup.drop_when_admitted(|| setup.limiter.acquire(KEY));
            setup.drop_when_admitted(|| async {
                {
                    let charges = setup.limiter.charges();
                    charges.check_batch(&[charge(charges.new_permit_id())], None).await
                }
            });
        }
        setup.assert_all_free();
    }
}

#[test]
fn permits_dropped_while_the_server_is_unreachable_are_returned() {
    for flavor in Flavor::ALL {
        let setup = Setup::new(flavor);
        let acquire = || setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
        let mut permits: Vec<_> = (0..5).map(|_| acquire().into_result().unwrap()).collect();
        setup.proxy.refuse(true);
        eventually(PATIENT, "the circuit breaker opened", || !setup.store.is_connected());
        let released = permits.pop().unwrap();
        assert!(setup.runtime.block_on(released.release()).is_err());
        drop(permits);
        assert_eq!(setup.held(), 5);
        eventually(PATIENT, "five are to be returned", || setup.store.stats().returning == 5);
        setup.proxy.refuse(false);
        setup.assert_all_free();
        assert_eq!(setup.store.stats().returning, 0);
    }
}

/// A denial while the server is unreachable has taken nothing, so nothing is queued for it.
#[test]
fn denials_while_the_server_is_unreachable_return_nothing() {
    let setup = Setup::new(Flavor::Redis);
    setup.proxy.refuse(true);
    eventually(PATIENT, "the circuit breaker opened", || !setup.store.is_connected());
    for _ in 0..100 {
        let denied = setup.runtime.block_on(setup.limiter.acquire(KEY)).unwrap();
        assert!(denied.decision.is_degraded() && denied.permit.is_none());
    }
    assert_eq!(setup.store.stats().returning, 0);
}

/// A caller that is admitted by its failure mode keeps its permit, and returns it.
#[test]
fn an_admission_with_a_late_answer_keeps_its_permit() {
    let setup = Setup::new(Flavor::Redis);
    let limiter = limiter(&setup.store, FailureMode::Open);
    setup.proxy.set_delay(DELAY);
    let late = setup.runtime.block_on(limiter.acquire(KEY)).unwrap();
    assert!(late.decision.is_degraded() && late.permit.is_some());
    setup.proxy.set_delay(Duration::ZERO);
    setup.wait_until_connected();
    eventually(PATIENT, "nothing is to be returned", || setup.store.stats().returning == 0);
    assert_eq!(setup.held(), 1);
    drop(late);
    setup.assert_all_free();
}

/// A request whose limits are on two servers of a cluster charges them one after the other, and continues after its
/// caller has stopped waiting.
#[test]
fn late_acquires_on_two_servers_return_their_permits() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    let runtime = two_threads();
    let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(DEADLINE);
    let store = runtime.block_on(builder.connect()).unwrap();
    let limit: Limit = LIMIT.parse().unwrap();
    let policy = |name: &str| {
        let policy = Policy::new(name, [limit]).per([name]);
        policy.failing(FailureMode::Closed)
    };
    let policies = PolicySet::new([policy("user"), policy("tenant")]).unwrap();
    let limiter = SharedLimiter::new(store.clone(), policies);
    let connected = || eventually(PATIENT, "the store is connected", || store.is_connected());
    let permits = || -> i64 {
        let count = |node: &Server| -> i64 {
            let keys = node.command(&["KEYS", "pg:*"]);
            keys.items().iter().map(|key| node.command(&["ZCARD", &key.text()]).int()).sum()
        };
        cluster.nodes().iter().map(count).sum()
    };
    for round in 0..10 {
        connected();
        let user = format!("user {round}");
        let request = Request::new().with("user", &user).with("tenant", "tenant");
        let stopped = &cluster.nodes()[round % 3];
        stopped.pause();
        let late = runtime.block_on(limiter.acquire_request(&request)).unwrap();
        let admitted = late.permit.is_some();
        assert_eq!(admitted, !late.decision.is_degraded());
        stopped.resume();
        drop(late);
        connected();
        eventually(PATIENT, "no permit is held", || permits() == 0);
    }
}
