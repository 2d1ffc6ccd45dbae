//! `Policy::notify` and `LimiterBuilder::on_threshold`.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use pacegate::{
    Algorithm, Charge, Claim, Counter, KeyBuf, Limit, Limiter, ManualClock, MemoryStore, Outcomes,
    Policy, PolicyName, PolicySet, Reply, Request, SharedLimiter, Store, StoreError, Task,
    ThresholdEvent, Timestamp, Update,
    policy::{Condition, Match, Threshold},
};
use pacegate_testkit::{Crossing, History, Op};

use crate::{RATE_ALGORITHMS, histories, limit};

/// The events that a limiter has reported.
#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<Vec<ThresholdEvent>>>);

impl Events {
    fn receiver(&self) -> impl Fn(ThresholdEvent) + Send + Sync + 'static {
        let events = self.clone();
        move |event| events.0.lock().unwrap_or_else(PoisonError::into_inner).push(event)
    }

    fn take(&self) -> Vec<ThresholdEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the percentages that were reported since the last call.
    fn percentages(&self) -> Vec<u8> {
        self.take().iter().map(|event| event.threshold.percent()).collect()
    }

    fn crossings(&self) -> Vec<Crossing> {
        self.take().iter().map(|event| (event.at, event.threshold)).collect()
    }
}

const NOTIFY: [u8; 4] = [1, 50, 80, 100];
const NONE: [u8; 0] = [];

fn policies(limit: Limit) -> PolicySet {
    PolicySet::new([Policy::new("plan", [limit]).per(["key"]).notify(NOTIFY)]).unwrap()
}

fn watched(limit: Limit) -> (Limiter, ManualClock, Events) {
    let (clock, events) = (ManualClock::new(), Events::default());
    let limiter = Limiter::builder().policies(policies(limit)).clock(clock.clone());
    let limiter = limiter.on_threshold(events.receiver()).build().unwrap();
    (limiter, clock, events)
}

/// Runs a history, and returns the events.
fn follow(history: &History) -> Vec<Crossing> {
    let (mut limiter, clock, events) = watched(history.limit);
    let (mut limit, mut now) = (history.limit, history.start);
    clock.set(now);
    let policy: PolicyName = "plan".parse().unwrap();
    let mut reservations = Vec::new();
    for op in &history.ops {
        let charge = Charge::new(policy, "key", limit).counter(Counter::Policy);
        match *op {
            Op::Reserve(estimate, ttl) => {
                let charge = charge.cost(estimate.min(limit.capacity()));
                let reserved = limiter.charges().reserve(&[charge], Duration::from_micros(ttl));
                reservations.push(reserved.unwrap().reservation);
            }
            Op::Settle(number, actual) => {
                if let Some(Some(reservation)) = reservations.get(number as usize) {
                    limiter.settle(reservation.id(), actual);
                }
            }
            Op::Pass(micros) => {
                now = Timestamp::from_micros(now.as_micros() + micros);
                clock.set(now);
            }
            Op::Charge(cost, permit) => {
                let charge = charge.cost(cost.min(limit.capacity())).holding(permit.into());
                let _ = limiter.charges().check(&[charge]).unwrap();
            }
            Op::UpTo(most) => {
                let _ = limiter.check_up_to("key", most.min(limit.capacity()));
            }
            Op::Record(cost, excess) => {
                let charge = charge.cost(cost).excess(excess);
                let _ = limiter.charges().check(&[charge]).unwrap();
            }
            Op::Refund(cost) => limiter.charges().refund(&[charge.cost(cost)]),
            Op::Reset => limiter.charges().reset(&[charge]),
            Op::SetLimit(other) => {
                limit = other;
                limiter = limiter.with_policies(policies(limit));
            }
            Op::Release(permit) => limiter.charges().release(&[charge.holding(permit.into())]),
            Op::Renew(permit) => {
                let _ = limiter.charges().renew(&[charge.holding(permit.into())]);
            }
        }
    }
    events.crossings()
}

#[test]
fn crossings_are_those_of_the_model() {
    let thresholds = NOTIFY.map(|percent| Threshold::new(percent).unwrap());
    let mut found = 0;
    for algorithm in RATE_ALGORITHMS.into_iter().chain([Algorithm::Concurrency]) {
        for seed in 0..histories() {
            let history = History::random(seed, algorithm);
            let expected = history.crossings(&thresholds, false);
            found += expected.len();
            assert_eq!(follow(&history), expected, "{history:?}");
        }
    }
    assert!(found > 50_000, "{found}");
}

#[test]
fn an_event_names_the_key_the_limit_and_the_window() {
    let (limiter, clock, events) = watched(limit("10/minute"));
    clock.set(Timestamp::from_secs(90));
    let _ = limiter.check_cost("alice", 5).unwrap();
    let found = events.take();
    assert_eq!(found.iter().map(|event| event.threshold.percent()).collect::<Vec<_>>(), [1, 50]);
    let event = &found[1];
    assert_eq!((event.policy.as_str(), event.key.to_string().as_str()), ("plan", "alice"));
    assert_eq!((event.used, event.limit, event.counter), (5, limit("10/minute"), Counter::Policy));
    assert_eq!(event.at, Timestamp::from_secs(90));
    assert_eq!(event.window_start, Timestamp::from_secs(60));
    assert_eq!(event.window_end, Timestamp::from_secs(120));
}

#[test]
fn each_threshold_is_reported_once_per_window() {
    let (limiter, clock, events) = watched(limit("10/minute"));
    clock.set(Timestamp::from_secs(60));
    let _ = limiter.check_cost("alice", 8).unwrap();
    assert_eq!(events.percentages(), [1, 50, 80]);
    limiter.refund("alice", 8);
    let _ = limiter.check_cost("alice", 9).unwrap();
    assert_eq!(events.percentages(), NONE, "refunded units are charged again");
    limiter.reset("alice");
    let _ = limiter.check_cost("alice", 10).unwrap();
    assert_eq!(events.percentages(), [100], "after a reset");
    assert!(!limiter.check("alice").is_allowed());
    assert_eq!(events.percentages(), NONE);
    let _ = limiter.check_cost("bob", 10).unwrap();
    assert_eq!(events.percentages(), NOTIFY, "another key");
    clock.set(Timestamp::from_secs(120));
    let _ = limiter.check_cost("alice", 10).unwrap();
    assert_eq!(events.percentages(), NOTIFY, "another window");
}

#[cfg(feature = "calendar")]
#[test]
fn a_threshold_of_a_calendar_period_is_reported_once_per_period() {
    let (limiter, clock, events) = watched(limit("10/month"));
    let (february, march) = (1_769_904_000, 1_772_323_200);
    for (at, cost, expected) in
        [(february, 5, &[1, 50][..]), (march - 1, 4, &[80]), (march, 5, &[1, 50])]
    {
        clock.set(Timestamp::from_secs(at));
        let _ = limiter.check_cost("alice", cost).unwrap();
        let found = events.take();
        let percentages: Vec<_> = found.iter().map(|event| event.threshold.percent()).collect();
        assert_eq!(percentages, expected, "{at}");
        let start = if at < march { february } else { march };
        assert_eq!(found[0].window_start, Timestamp::from_secs(start));
        assert!(at >= march || found[0].window_end == Timestamp::from_secs(march));
    }
}

#[test]
fn a_denial_reaches_100_percent() {
    let (limiter, _, events) = watched(limit("10/minute"));
    let _ = limiter.check_cost("alice", 6).unwrap();
    assert_eq!(events.percentages(), [1, 50]);
    assert!(!limiter.check_cost("alice", 5).unwrap().is_allowed());
    assert_eq!(events.percentages(), [100], "although 4 units are left");
    let _ = limiter.check_cost("alice", 4).unwrap();
    assert_eq!(events.percentages(), [80]);
}

#[test]
fn peeks_and_requests_that_another_limit_denies_reach_nothing() {
    let small = Policy::new("small", ["1/hour"]).per(["key"]);
    let large = Policy::new("large", ["2/hour"]).per(["key"]).notify([50, 100]);
    let events = Events::default();
    let limiter = Limiter::builder().policies(PolicySet::new([small, large]).unwrap());
    let limiter = limiter.on_threshold(events.receiver()).build().unwrap();
    assert!(limiter.peek("alice").is_allowed());
    assert_eq!(events.percentages(), NONE);
    assert!(limiter.check("alice").is_allowed());
    assert_eq!(events.percentages(), [50]);
    assert!(!limiter.check("alice").is_allowed());
    assert_eq!(events.percentages(), NONE, "the policy `large` has a unit left");
    // A limit of the call has no thresholds.
    let _ = limiter.check_with("alice", Limit::per_hour(1));
    assert_eq!(events.percentages(), NONE);
}

#[test]
fn a_reservation_reports_its_estimate() {
    let (limiter, _, events) = watched(Limit::per_hour(10));
    let ttl = std::time::Duration::from_secs(60);
    let reservation = limiter.reserve("alice", 8, ttl).unwrap().into_result().unwrap();
    assert_eq!(events.percentages(), [1, 50, 80]);
    assert!(reservation.settle(3));
    let _ = limiter.check_cost("alice", 6).unwrap();
    assert_eq!(events.percentages(), NONE, "returned units are charged again");
    assert!(limiter.reserve("alice", 8, ttl).unwrap().reservation.is_none());
    assert_eq!(events.percentages(), [100]);
}

/// The units beyond an estimate are charged when it is settled.
#[test]
fn a_settlement_reports_the_thresholds_that_its_debt_reaches() {
    let ttl = Duration::from_secs(60);
    for (actual, expected) in [(9, &[80][..]), (10, &[80, 100]), (12, &[80, 100]), (5, &[])] {
        let (limiter, _, events) = watched(Limit::per_hour(10));
        let reservation = limiter.reserve("alice", 5, ttl).unwrap().into_result().unwrap();
        assert_eq!(events.percentages(), [1, 50]);
        assert!(reservation.settle(actual));
        assert_eq!(events.percentages(), expected, "{actual}");
    }
    let (store, events) = (Arc::new(MemoryStore::default()), Events::default());
    let limiter = SharedLimiter::builder(store).policies(policies(Limit::per_hour(10)));
    let limiter = limiter.on_threshold(events.receiver()).build().unwrap();
    pollster::block_on(async {
        let reserved = limiter.reserve("alice", 5, ttl).await.unwrap();
        assert!(reserved.into_result().unwrap().settle(9).await.unwrap());
        let _ = limiter.check("alice").await.unwrap();
    });
    assert_eq!(events.percentages(), NOTIFY);
}

#[test]
fn overrides_and_batches_report_too() {
    let plan = Policy::new("plan", ["10/hour"]).per(["user"]).notify([100]);
    let partner = Match::any().and("plan", Condition::equal("partner"));
    let plan = plan.overriding(partner, [Limit::per_hour(2)]);
    let events = Events::default();
    let limiter = Limiter::builder().policies(PolicySet::new([plan]).unwrap());
    let limiter = limiter.on_threshold(events.receiver()).build().unwrap();
    let request = Request::new().with("user", "alice").with("plan", "partner");
    let _ = limiter.check_request(&request.clone().cost(2)).unwrap();
    let found = events.take();
    assert!(matches!(found[0].counter, Counter::Override(_)));
    assert_eq!(found[0].limit, Limit::per_hour(2));
    let charge = Charge::new("plan".parse().unwrap(), "bob", Limit::per_hour(10));
    let charge = charge.counter(Counter::Policy).cost(5);
    let mut decisions = Vec::new();
    limiter.charges().check_each(&[charge, charge], &mut decisions);
    assert_eq!(events.percentages(), [100]);
    let (limiter, _, events) = watched(Limit::per_hour(2));
    let _ = limiter.check_many(&["alice", "bob", "alice"]);
    assert_eq!(events.percentages(), [1, 50, 1, 50, 80, 100]);
}

#[test]
fn keys_in_the_overflow_counter_report_nothing() {
    let events = Events::default();
    let limiter = Limiter::builder().policies(policies(Limit::per_hour(2))).max_keys(1);
    let limiter = limiter.on_threshold(events.receiver()).build().unwrap();
    let _ = limiter.check("alice");
    assert_eq!(events.percentages(), [1, 50]);
    let _ = limiter.check_many(&["bob", "carol", "dave"]);
    assert_eq!(events.percentages(), NONE);
}

/// A store that several limiters share. An event is that of one key.
#[derive(Default)]
struct Claiming {
    memory: MemoryStore,
    claims: Mutex<HashMap<(KeyBuf, [u64; 2]), u128>>,
    is_down: AtomicBool,
    /// Claims fail.
    loses_claims: AtomicBool,
    tasks: Mutex<Vec<Task>>,
}

impl fmt::Debug for Claiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claiming")
    }
}

impl Claiming {
    /// Polls the tasks that are not complete.
    fn poll(&self) {
        let cx = &mut Context::from_waker(Waker::noop());
        self.tasks.lock().unwrap().retain_mut(|task| task.as_mut().poll(cx).is_pending());
    }
}

impl Store for Claiming {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match self.is_down.load(Ordering::Relaxed) {
            true => Reply::Ready(Err(StoreError::TimedOut)),
            false => self.memory.charge(charges, id),
        }
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.memory.update(charge, update)
    }

    fn claim(&self, charge: &Charge<'_>, claim: Claim) -> Reply<'_, bool> {
        if self.loses_claims.load(Ordering::Relaxed) {
            return Reply::Ready(Err(StoreError::TimedOut));
        }
        let mut claims = self.claims.lock().unwrap();
        let owner = claims.entry((charge.key.to_buf(), claim.event)).or_insert(claim.owner);
        Reply::Ready(Ok(*owner == claim.owner))
    }

    fn spawn(&self, task: Task) {
        self.tasks.lock().unwrap().push(task);
        self.poll();
    }
}

fn replica(store: &Arc<Claiming>) -> (SharedLimiter, Events) {
    let events = Events::default();
    let policy = Policy::new("plan", ["10/day"]).per(["key"]).notify([80]);
    let limiter = SharedLimiter::builder(store.clone()).policies(PolicySet::new([policy]).unwrap());
    (limiter.on_threshold(events.receiver()).build().unwrap(), events)
}

#[test]
fn one_of_several_replicas_reports_an_event() {
    let store = Arc::new(Claiming::default());
    let replicas = [replica(&store), replica(&store), replica(&store)];
    for n in 0..10 {
        let decision = pollster::block_on(replicas[n % 3].0.check("alice")).unwrap();
        assert!(decision.is_allowed());
    }
    let found: Vec<_> = replicas.iter().flat_map(|(_, events)| events.take()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].used, 8);
    let claims = store.claims.lock().unwrap().len();
    assert_eq!(claims, 1, "all replicas claim the same event");
}

/// The answer to the charge that crossed the threshold may be lost.
#[test]
fn the_next_charge_of_a_window_reports_a_crossing_whose_answer_was_lost() {
    let store = Arc::new(Claiming::default());
    let (limiter, events) = replica(&store);
    let unwatched = SharedLimiter::new(store.clone(), limiter.policies().clone());
    let _ = pollster::block_on(unwatched.check_cost("alice", 8)).unwrap();
    let _ = pollster::block_on(limiter.check("alice")).unwrap();
    assert_eq!(events.percentages(), [80]);
    let _ = pollster::block_on(limiter.check("alice")).unwrap();
    assert_eq!(events.percentages(), NONE);
}

/// A process remembers a bounded number of events. The store knows the others.
#[test]
fn an_event_that_the_process_has_forgotten_is_not_reported_again() {
    let store = Arc::new(Claiming::default());
    let (limiter, events) = replica(&store);
    let keys = 140_000;
    for key in 0..keys {
        let _ = pollster::block_on(limiter.check_cost(key, 8)).unwrap();
    }
    assert_eq!(events.percentages().len(), keys);
    for key in 0..100 {
        let _ = pollster::block_on(limiter.check(key)).unwrap();
    }
    assert_eq!(events.percentages(), NONE);
}

/// A simulation replaces the clock, and must not wait for a real timer.
#[test]
fn a_failed_claim_is_repeated_by_the_clock_of_the_limiter() {
    let (store, clock, events) =
        (Arc::new(Claiming::default()), ManualClock::new(), Events::default());
    let limiter = SharedLimiter::builder(store.clone()).policies(policies(limit("10/day")));
    let limiter = limiter.clock(clock.clone()).on_threshold(events.receiver()).build().unwrap();
    store.loses_claims.store(true, Ordering::Relaxed);
    let _ = pollster::block_on(limiter.check("alice")).unwrap();
    store.loses_claims.store(false, Ordering::Relaxed);
    clock.advance(Duration::from_millis(99));
    store.poll();
    assert_eq!(events.percentages(), NONE);
    clock.advance(Duration::from_millis(1));
    store.poll();
    assert_eq!(events.percentages(), [1]);
}

#[test]
fn failure_modes_report_nothing() {
    let store = Arc::new(Claiming::default());
    let (limiter, events) = replica(&store);
    store.is_down.store(true, Ordering::Relaxed);
    for _ in 0..12 {
        assert!(pollster::block_on(limiter.check("alice")).unwrap().is_degraded());
    }
    assert_eq!(events.percentages(), NONE);
    store.is_down.store(false, Ordering::Relaxed);
    let _ = pollster::block_on(limiter.check_cost("alice", 8)).unwrap();
    assert_eq!(events.percentages(), [80]);
    assert_eq!(limiter.stats().dropped_events, 0);
}
