//! `SharedLimiter` over a store that the test controls.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use pacegate::{
    Charge, CheckError, Clock, Decision, KeyBuf, KeyRef, Limiter, ManualClock, MemoryStore,
    Outcomes, Policy, PolicySet, Reply, Request, SettledCharges, SharedLimiter, Store, StoreError,
    Task, Update, WaitError,
    algorithm::Outcome,
    policy::{FailureMode, Lease},
};

use crate::{limit, waiting::Waiting};

const SECOND: Duration = Duration::from_secs(1);

/// A memory store that records its calls; the test can hold its answers back or make it fail.
#[derive(Clone)]
pub(crate) struct Double {
    store: MemoryStore,
    hands: Arc<Mutex<Hands>>,
}

/// The recorded calls and the behaviour that the test has set.
#[derive(Default)]
struct Hands {
    asked: Vec<Asked>,
    failing: Option<StoreError>,
    /// If set, calls take effect but their answers are held back; contains the wakers of the callers.
    holding: Option<Vec<Waker>>,
    /// If set, the immediate answer to every single charge.
    at_once: Option<Outcome>,
    /// Past answers by request id.
    once: HashMap<Vec<u8>, Outcomes>,
    spawned: Vec<Task>,
}

/// One charge of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) policy: String,
    pub(crate) key: KeyBuf,
    pub(crate) tag: KeyBuf,
    pub(crate) lease: u64,
}

impl Double {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self { store: MemoryStore::new(1_000, clock.clone()), hands: Arc::default() }
    }

    /// Makes every call fail from now on.
    pub(crate) fn fail(&self, error: StoreError) {
        self.hands.lock().unwrap().failing = Some(error);
    }

    /// Makes calls succeed again.
    pub(crate) fn recover(&self) {
        self.hands.lock().unwrap().failing = None;
    }

    /// Holds all answers back from now on.
    fn hold(&self) {
        self.hands.lock().unwrap().holding = Some(Vec::new());
    }

    /// Delivers the answers that were held back.
    fn let_go(&self) {
        let held = self.hands.lock().unwrap().holding.take();
        held.into_iter().flatten().for_each(Waker::wake);
    }

    /// Returns the charges received since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.hands.lock().unwrap().asked)
    }

    /// Runs the spawned tasks to completion and returns their number.
    fn run_spawned(&self) -> usize {
        let spawned = std::mem::take(&mut self.hands.lock().unwrap().spawned);
        spawned.into_iter().map(pollster::block_on).count()
    }

    fn answer<'a, T: Send + 'a>(
        &'a self,
        charges: &[Charge<'_>],
        answer: impl FnOnce() -> Result<T, StoreError>,
    ) -> Reply<'a, T> {
        let mut hands = self.hands.lock().unwrap();
        hands.asked.extend(charges.iter().map(|charge| Asked {
            policy: charge.policy.to_string(),
            key: charge.key.to_buf(),
            tag: charge.tag.to_buf(),
            lease: charge.lease,
        }));
        let failing = hands.failing.clone();
        drop(hands);
        let answer = failing.map_or_else(answer, Err);
        Reply::pending(async move {
            poll_fn(|cx| self.poll_held(cx)).await;
            answer
        })
    }

    fn poll_held(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut self.hands.lock().unwrap().holding {
            Some(waiting) => {
                waiting.push(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Store for Double {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        if let ([_], None, Some(outcome)) = (charges, id, self.hands.lock().unwrap().at_once) {
            return Reply::Ready(Ok([outcome].into_iter().collect()));
        }
        self.answer(charges, || {
            let Some(id) = id else { return ready(self.store.charge(charges, None)) };
            let known = self.hands.lock().unwrap().once.get(id).cloned();
            let outcomes = known.map_or_else(|| ready(self.store.charge(charges, None)), Ok)?;
            self.hands.lock().unwrap().once.insert(id.to_vec(), outcomes.clone());
            Ok(outcomes)
        })
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.answer(&[*charge], || ready(self.store.update(charge, update)))
    }

    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        self.answer(charges, || ready(self.store.reserve(charges, id, ttl)))
    }

    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        self.answer(charges, || ready(self.store.settle(charges, id, actual)))
    }

    fn spawn(&self, task: Task) {
        self.hands.lock().unwrap().spawned.push(task);
    }
}

fn ready<T: Unpin>(reply: Reply<'_, T>) -> Result<T, StoreError> {
    pollster::block_on(reply)
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Double")
    }
}

pub(crate) fn policy(name: &str, text: &str) -> Policy {
    Policy::new(name, [limit(text)])
}

/// Creates a limiter over a `Double`, with a manual clock.
fn limiter(text: &str) -> (SharedLimiter, Double, ManualClock) {
    let clock = ManualClock::new();
    let store = Double::new(&clock);
    let builder = SharedLimiter::builder(store.clone()).clock(clock.clone());
    (builder.limit(text).build().unwrap(), store, clock)
}

fn check(limiter: &SharedLimiter, key: &str) -> Decision {
    pollster::block_on(limiter.check(key)).unwrap()
}

#[test]
fn charges_carry_the_tag_and_the_lease_of_their_policy() {
    let store = Double::new(&ManualClock::new());
    let policies = PolicySet::new([
        policy("key", "100/hour").per(["key"]).leased(Lease::Percent(5)),
        policy("part", "100/hour").per(["path", "key"]).tagged_by("key"),
        policy("name", "100/hour").per(["path"]).tagged("all"),
    ]);
    let limiter = SharedLimiter::new(store.clone(), policies.unwrap());
    let tags = || -> Vec<_> { store.asked().iter().map(|asked| asked.tag.clone()).collect() };
    let one = |text: &str| pacegate::KeyRef::new(text.as_bytes()).to_buf();

    let request = Request::new().with("key", "alice").with("path", "/x");
    let _ = pollster::block_on(limiter.check_request(&request)).unwrap();
    let asked = store.asked();
    let tags_of_request: Vec<_> = asked.iter().map(|asked| asked.tag.clone()).collect();
    assert_eq!(tags_of_request, [one("alice"), one("alice"), one("all")]);
    assert_eq!(asked.iter().map(|asked| asked.lease).collect::<Vec<_>>(), [5, 0, 0]);

    // If the attribute is missing, the key is the tag.
    let anonymous = Request::new().with("path", "/x");
    let _ = pollster::block_on(limiter.check_request(&anonymous)).unwrap();
    assert!(store.asked()[..2].iter().all(|asked| asked.tag == asked.key));

    // Refunds and resets must use the same tags as the charges.
    let _ = pollster::block_on(limiter.check("alice")).unwrap();
    let charged = tags();
    pollster::block_on(limiter.refund("alice", 1)).unwrap();
    assert_eq!(tags(), charged);
    pollster::block_on(limiter.reset("alice")).unwrap();
    assert_eq!(tags(), charged);
}

/// Covers the three ways to check a single limit: by key, by request, and by explicit charges.
#[test]
fn an_immediate_answer_is_returned_without_a_store_call() {
    let (limiter, store, _clock) = limiter("5/minute");
    let own = Charge::new("own".parse().unwrap(), KeyRef::new(b"bob"), limit("2/minute"));
    let other = Charge::new("other".parse().unwrap(), KeyRef::new(b"bob"), limit("2/hour"));
    let denied = Outcome::denied(0, Some(SECOND), 7 * SECOND);
    store.hands.lock().unwrap().at_once = Some(denied);
    let by_request =
        limiter.with_policies(PolicySet::new([Policy::new("api", [limit("5/minute")])]).unwrap());
    for decision in [
        check(&limiter, "alice"),
        pollster::block_on(by_request.check_request(&Request::new())).unwrap(),
        pollster::block_on(limiter.charges().check_batch(&[own], None)).unwrap().decision,
    ] {
        assert_eq!((decision.is_allowed(), decision.retry_after()), (false, Some(SECOND)));
    }
    assert_eq!(store.asked(), [], "the store received no call");
    assert_eq!(limiter.stats().policies[0].denied, 1, "the denial is counted");

    let pair = pollster::block_on(limiter.charges().check_batch(&[own, other], None)).unwrap();
    assert!(pair.decision.is_allowed(), "several charges always go to the store");
    store.hands.lock().unwrap().at_once = None;
    assert!(check(&limiter, "alice").is_allowed());
    assert_eq!(store.asked().len(), 3);
}

/// A single charge takes a shorter code path than several. Both return the same outcomes, also for keys that share a
/// counter.
#[test]
fn a_single_charge_is_decided_as_one_of_several() {
    let algorithms =
        ["", " sliding-window", " token-bucket", " sliding-log", " concurrency"].into_iter();
    for text in algorithms.map(|algorithm| format!("3/minute{algorithm}")) {
        let clock = ManualClock::new();
        let [single, several] = [(); 2].map(|()| MemoryStore::new(2, clock.clone()));
        let costs = [(1, true), (0, true), (3, true), (2, false), (1, false), (1, true)];
        for (key, (permit, (cost, enforced))) in ["a", "b", "c", "a"]
            .into_iter()
            .flat_map(|key| costs.iter().enumerate().map(move |c| (key, c)))
        {
            let key = KeyRef::new(key.as_bytes());
            let charge = Charge::new("api".parse().unwrap(), key, limit(&text));
            let charge = charge.cost(*cost).enforced(*enforced).holding(1 + permit as u128);
            let peek = Charge::new("other".parse().unwrap(), key, limit(&text)).cost(0);
            let outcomes = ready(several.charge(&[charge, peek], None)).unwrap();
            assert_eq!(
                ready(single.charge(&[charge], None)).unwrap()[0],
                outcomes[0],
                "{text} at {cost}"
            );
        }
        let held = |store: &MemoryStore| (store.usage().keys, store.usage().overflowed);
        assert_eq!(held(&single), held(&several));
    }
}

#[test]
fn a_request_with_an_id_counts_once() {
    let limiter = SharedLimiter::new(
        Double::new(&ManualClock::new()),
        PolicySet::new([policy("api", "9/hour")]).unwrap(),
    );
    let ask = |request: &Request<'_>| pollster::block_on(limiter.check_request(request));
    let first = Request::new().id("first").unwrap();
    assert_eq!(ask(&first).unwrap().remaining(), 8);
    assert_eq!(ask(&first).unwrap().remaining(), 8, "the same answer");
    assert_eq!(ask(&Request::new().id(b"second").unwrap()).unwrap().remaining(), 7);
    assert_eq!(ask(&Request::new()).unwrap().remaining(), 6);
    let peek = first.clone().cost(0);
    assert_eq!(
        ask(&peek).unwrap().remaining(),
        6,
        "a peek ignores the id and shows the current state"
    );

    let memory = MemoryStore::default();
    let limiter = SharedLimiter::builder(memory).limit("9/hour").build().unwrap();
    let error = pollster::block_on(limiter.check_request(&first)).unwrap_err();
    assert!(matches!(error, CheckError::Store(StoreError::Unsupported(_))), "{error}");
}

#[test]
fn an_id_is_neither_empty_nor_long() {
    let error = Request::new().id("").unwrap_err().to_string();
    assert_eq!(error, "the id of a request has from 1 to 128 bytes, not 0");
    assert!(Request::new().id(&[7; 129]).is_err());
    assert_eq!(Request::new().id(&[7; 128]).unwrap().id_bytes(), Some(&[7; 128][..]));
}

#[test]
fn builder_and_with_limit_work_as_for_limiter() {
    let (limiter, _, _) = limiter("1/hour");
    assert!(check(&limiter, "key").is_allowed() && !check(&limiter, "key").is_allowed());
    let raised = limiter.with_limit(limit("3/hour"));
    assert_eq!(check(&raised, "key").remaining(), 1, "one was used before");
    let own = raised.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (2, 1));
    let none = SharedLimiter::builder(MemoryStore::default()).build().unwrap_err();
    assert_eq!(none, pacegate::BuildError::NoLimit);
}

#[test]
fn check_many_sends_all_keys_at_once() {
    let (limiter, store, _) = limiter("2/hour");
    store.hold();
    let keys = ["alice", "bob", "alice", "alice"];
    let mut many = Waiting::of(limiter.check_many(&keys));
    assert!(many.poll().is_none());
    assert_eq!(store.asked().len(), 4, "all were sent before any answer arrived");
    store.let_go();
    let decisions = many.poll_if_woken().unwrap().unwrap();
    let allowed: Vec<_> = decisions.iter().map(Decision::is_allowed).collect();
    assert_eq!(allowed, [true, true, true, false]);
    assert_eq!(limiter.stats().policies[0].denied, 1);
    assert_eq!(pollster::block_on(limiter.check_many::<&str>(&[])), Ok(Vec::new()));
}

#[test]
fn waiters_of_a_process_are_served_in_the_order_they_came() {
    let (limiter, store, clock) = limiter("1/second burst 1");
    let _ = check(&limiter, "key");
    let wait = || Waiting::of(limiter.until_ready("key", 10 * SECOND));
    let mut waiters: Vec<_> = (0..4).map(|_| wait()).collect();
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    store.asked();
    let mut served = Vec::new();
    for _ in 0..4 {
        clock.advance(SECOND);
        for _ in 0..2 {
            for (number, waiter) in waiters.iter_mut().enumerate().rev() {
                if let Some(result) = waiter.poll_if_woken() {
                    assert!(result.unwrap().is_allowed());
                    served.push(number);
                }
            }
        }
    }
    assert_eq!(served, [0, 1, 2, 3]);
    // One call admitted each waiter; the next waiter made one more call to learn its wait.
    assert_eq!(store.asked().len(), 4 + 3);
    let own = limiter.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (5, 0));
}

#[test]
fn a_waiter_retries_at_retry_after_and_not_earlier() {
    let (limiter, store, clock) = limiter("1/second burst 1");
    let _ = check(&limiter, "key");
    store.asked();
    let mut waiter = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    for _ in 0..5 {
        assert!(waiter.poll().is_none(), "spurious wake-up");
        clock.advance(SECOND / 8);
    }
    assert_eq!(store.asked().len(), 1);
    clock.advance(SECOND / 8 * 3);
    // Another caller, perhaps in another process, takes the unit first.
    assert!(check(&limiter, "key").is_allowed());
    assert!(waiter.poll_if_woken().is_none());
    assert_eq!(store.asked().len(), 1 + 1);
    clock.advance(SECOND);
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_deadline_that_cannot_be_met_fails_at_once() {
    let (limiter, store, _) = limiter("1/second burst 1");
    let _ = check(&limiter, "key");
    let wait = |within| Waiting::of(limiter.until_ready("key", within));
    let too_long = || Some(Err(WaitError::TooLong { needed: Some(SECOND) }));
    assert_eq!(wait(SECOND - Duration::from_micros(1)).poll(), too_long());
    let mut first = wait(SECOND);
    assert!(first.poll().is_none(), "to the microsecond");
    store.asked();
    // A later waiter cannot be served before the first.
    assert_eq!(wait(SECOND / 2).poll(), too_long());
    assert!(store.asked().is_empty(), "rejected without a store call");
    let mut cost = Waiting::of(limiter.until_ready_cost("key", 2, SECOND));
    assert!(matches!(cost.poll(), Some(Err(WaitError::Cost(_)))));
    let never = limiter.with_limit(limit("0/second token-bucket"));
    let mut never = Waiting::of(never.until_ready("other", SECOND));
    assert_eq!(never.poll(), Some(Err(WaitError::TooLong { needed: None })));
}

/// After the clock steps back by an hour, the expected wait of the first waiter is still a second.
#[test]
fn a_waiter_that_joins_after_a_clock_step_back_is_not_rejected() {
    let (limiter, _, clock) = limiter("1/second burst 1");
    let _ = check(&limiter, "key");
    let mut first = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    assert!(first.poll().is_none());
    clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - 3_600_000_000));
    let mut second = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    assert!(second.poll().is_none());
    let mut third = Waiting::of(limiter.until_ready("key", SECOND / 2));
    assert_eq!(third.poll(), Some(Err(WaitError::TooLong { needed: Some(SECOND) })));
}

/// The expected wait of the first waiter is discarded after a refund and when that waiter is cancelled.
#[test]
fn a_stale_expected_wait_rejects_no_waiter() {
    let (limiter, _, clock) = limiter("1/second burst 10");
    let spent = pollster::block_on(limiter.check_cost("key", 10)).unwrap();
    assert!(spent.is_allowed());
    let wait = |cost, seconds| {
        Waiting::of(limiter.until_ready_cost("key", cost, Duration::from_secs(seconds)))
    };
    let mut first = wait(10, 20);
    assert!(first.poll().is_none());
    let too_long = Some(Err(WaitError::TooLong { needed: Some(10 * SECOND) }));
    assert_eq!(wait(1, 5).poll(), too_long, "the first expects to wait for ten seconds");
    pollster::block_on(limiter.refund("key", 1)).unwrap();
    let mut second = wait(2, 5);
    assert!(second.poll().is_none(), "the wait may be shorter after the refund");
    assert!(first.poll_if_woken().is_none(), "one unit is not enough for the first");
    assert!(matches!(wait(1, 5).poll(), Some(Err(WaitError::TooLong { .. }))));
    drop(first);
    let mut third = wait(1, 5);
    assert!(third.poll().is_none());
    clock.advance(2 * SECOND);
    assert!(second.poll_if_woken().is_some_and(|result| result.is_ok()));
    assert!(third.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_wait_ends_at_its_deadline_behind_others() {
    let (limiter, store, clock) = limiter("1/second burst 1");
    let _ = check(&limiter, "key");
    let mut first = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    let mut second = Waiting::of(limiter.until_ready("key", SECOND));
    assert!(first.poll().is_none() && second.poll().is_none());
    store.hold();
    clock.advance(SECOND);
    assert!(first.poll_if_woken().is_none(), "the store has not answered yet");
    assert_eq!(second.poll_if_woken(), Some(Err(WaitError::TimedOut)));
    store.let_go();
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
    let own = limiter.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (2, 1));
}

#[test]
fn a_refund_during_a_store_call_wakes_the_waiter() {
    let (limiter, store, _) = limiter("1/hour token-bucket");
    let _ = check(&limiter, "key");
    store.hold();
    let mut waiter = Waiting::of(limiter.until_ready("key", 7_200 * SECOND));
    let mut refund = Waiting::of(limiter.refund("key", 1));
    assert!(waiter.poll().is_none() && refund.poll().is_none());
    store.let_go();
    // The store denied the charge before the refund arrived; the waiter sees the denial and the refund in one poll.
    assert_eq!(refund.poll_if_woken(), Some(Ok(())));
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_cancelled_wait_blocks_no_other_and_waiters_are_bounded() {
    let clock = ManualClock::new();
    let builder = SharedLimiter::builder(Double::new(&clock)).clock(clock.clone()).max_waiters(2);
    let limiter = builder.limit("1/second burst 1").build().unwrap();
    let _ = check(&limiter, "key");
    let mut waiters = [(); 3].map(|()| Waiting::of(limiter.until_ready("key", 10 * SECOND)));
    let [first, second, third] = &mut waiters;
    assert!(first.poll().is_none() && second.poll().is_none());
    assert_eq!(third.poll(), Some(Err(WaitError::QueueFull { waiting: 2 })));
    let [first, mut second, _] = waiters;
    drop(first);
    assert!(second.poll_if_woken().is_none(), "it is first, but no unit is available yet");
    clock.advance(SECOND);
    assert!(second.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn waiting_continues_while_the_store_is_unavailable() {
    let closed = policy("api", "1/hour").per(["key"]).failing(FailureMode::Closed);
    let clock = ManualClock::new();
    let store = Double::new(&clock);
    let builder = SharedLimiter::builder(store.clone()).clock(clock.clone());
    let limiter = builder.policies(PolicySet::new([closed]).unwrap()).build().unwrap();
    store.fail(StoreError::TimedOut);
    let mut waiter = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    assert!(waiter.poll().is_none());
    assert_eq!(clock.next_wake(), Some(clock.now().after(FailureMode::RETRY_AFTER)));
    store.recover();
    clock.advance(FailureMode::RETRY_AFTER);
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok_and(|d| !d.is_degraded())));
    store.fail(StoreError::Unsupported("this".into()));
    let mut waiter = Waiting::of(limiter.until_ready("key", 10 * SECOND));
    assert_eq!(waiter.poll(), Some(Err(WaitError::Store(StoreError::Unsupported("this".into())))));
}

#[test]
fn a_permit_is_held_in_the_store_until_it_is_released() {
    let (limiter, store, clock) = limiter("1/minute concurrency");
    let acquire = || pollster::block_on(limiter.acquire("key")).unwrap();
    let permit = acquire().into_result().unwrap();
    assert!(acquire().permit.is_none());
    clock.advance(40 * SECOND);
    assert_eq!(pollster::block_on(permit.renew()), Ok(true));
    clock.advance(40 * SECOND);
    assert!(acquire().permit.is_none(), "renewed in time");
    assert_eq!(pollster::block_on(permit.release()), Ok(()));
    assert_eq!(store.run_spawned(), 0, "no task was spawned");
    let permit = acquire().into_result().unwrap();
    clock.advance(60 * SECOND);
    assert_eq!(pollster::block_on(permit.renew()), Ok(false), "the permit has expired");
}

#[test]
fn a_dropped_permit_is_returned_without_waiting() {
    let (limiter, store, _) = limiter("1/hour concurrency");
    let acquire = || pollster::block_on(limiter.acquire("key")).unwrap();
    let permit = acquire().into_result().unwrap();
    let mut waiter = Waiting::of(limiter.until_ready("key", 7_200 * SECOND));
    assert!(waiter.poll().is_none());
    drop(permit);
    assert!(acquire().permit.is_none(), "the release has not reached the store yet");
    assert_eq!(store.run_spawned(), 1);
    assert!(
        waiter.poll_if_woken().is_some_and(|result| result.is_ok()),
        "the release wakes the waiter immediately"
    );

    // A store that answers immediately needs no spawned task.
    let limiter = SharedLimiter::builder(MemoryStore::default()).limit("1/hour concurrency");
    let limiter = limiter.build().unwrap();
    for _ in 0..3 {
        assert!(pollster::block_on(limiter.acquire("key")).unwrap().permit.is_some());
    }
}

#[test]
fn a_cancelled_acquire_releases_its_permit() {
    let (limiter, store, _) = limiter("1/hour concurrency");
    store.hold();
    let mut cancelled = Waiting::of(limiter.acquire("key"));
    assert!(cancelled.poll().is_none());
    drop(cancelled);
    store.let_go();
    assert_eq!(store.run_spawned(), 1);
    let again = pollster::block_on(limiter.acquire("key")).unwrap();
    assert!(again.permit.is_some());
    // A denied acquire holds no permit, so no release is spawned.
    assert!(pollster::block_on(limiter.acquire("key")).unwrap().permit.is_none());
    assert_eq!(store.run_spawned(), 0);
}

/// Uses `check_batch` with permit ids chosen by the caller, as the server does.
#[test]
fn a_cancelled_check_batch_releases_its_permit() {
    let (limiter, store, _) = limiter("1/hour concurrency");
    let policy = limiter.policies().policies()[0].name;
    let charge = Charge::new(policy, "key", limit("1/hour concurrency"));
    let charges = || [charge.holding(limiter.charges().new_permit_id())];
    store.hold();
    let cancelled = charges();
    let mut cancelled = Waiting::of(limiter.charges().check_batch(&cancelled, None));
    assert!(cancelled.poll().is_none());
    drop(cancelled);
    store.let_go();
    assert_eq!(store.run_spawned(), 1);
    assert!(
        pollster::block_on(limiter.charges().check_batch(&charges(), None))
            .unwrap()
            .decision
            .is_allowed()
    );
    assert!(
        !pollster::block_on(limiter.charges().check_batch(&charges(), None))
            .unwrap()
            .decision
            .is_allowed()
    );
    assert_eq!(store.run_spawned(), 0, "both were answered, so no release is spawned");
}

#[test]
fn a_denial_after_a_lost_answer_releases_the_permit() {
    let closed = policy("api", "1/hour concurrency").per(["key"]).failing(FailureMode::Closed);
    let store = Double::new(&ManualClock::new());
    let limiter = SharedLimiter::new(store.clone(), PolicySet::new([closed]).unwrap());
    for (error, returned) in [
        (StoreError::TimedOut, 1),
        (StoreError::Interrupted("lost".into()), 1),
        (StoreError::Failed("strange".into()), 1),
        (StoreError::Unavailable("nothing was sent".into()), 0),
    ] {
        store.fail(error.clone());
        assert!(pollster::block_on(limiter.acquire("key")).unwrap().permit.is_none());
        assert_eq!(store.run_spawned(), returned, "{error}");
        let charge = Charge::new("api".parse().unwrap(), "key", limit("1/hour concurrency"));
        let charges = [charge.holding(limiter.charges().new_permit_id())];
        assert!(
            !pollster::block_on(limiter.charges().check_batch(&charges, None))
                .unwrap()
                .decision
                .is_allowed()
        );
        assert_eq!(store.run_spawned(), returned, "{error}");
        assert_eq!(limiter.stats().last_store_failure, Some(error));
    }
}

#[test]
fn permits_of_a_store_can_be_waited_for() {
    let (limiter, store, clock) = limiter("1/hour concurrency");
    let permit = pollster::block_on(limiter.acquire("key")).unwrap().into_result().unwrap();
    let wait = |_| Waiting::of(limiter.acquire_within("key", 30 * SECOND));
    let mut waiters: Vec<_> = (0..3).map(wait).collect();
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    assert_eq!(pollster::block_on(permit.release()), Ok(()));
    for number in [2, 1] {
        assert!(waiters[number].poll_if_woken().is_none(), "waiter {number} is not next");
    }
    let first = waiters[0].poll_if_woken().unwrap().unwrap();
    assert_eq!(pollster::block_on(first.renew()), Ok(true));
    assert!(waiters[1].poll_if_woken().is_none(), "it is next, but no permit is free");
    drop(first);
    assert_eq!(store.run_spawned(), 1);
    let second = waiters[1].poll_if_woken().unwrap().unwrap();
    clock.advance(30 * SECOND);
    let third = waiters[2].poll_if_woken().map(|result| result.map(|_| ()));
    assert_eq!(third, Some(Err(WaitError::TimedOut)));
    drop(second);
    assert_eq!(store.run_spawned(), 1, "the waiter that timed out releases nothing");
    let own = limiter.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (3, 1));
}

/// This process gets no notification of that release, so the first in the queue polls the store every second.
#[test]
fn a_permit_that_another_process_returns_is_found_within_a_second() {
    let (limiter, store, clock) = limiter("1/hour concurrency");
    let other = SharedLimiter::builder(store.clone()).clock(clock.clone());
    let other = other.limit("1/hour concurrency").build().unwrap();
    let permit = pollster::block_on(other.acquire("key")).unwrap().into_result().unwrap();
    let mut first = Waiting::of(limiter.acquire_within("key", 30 * SECOND));
    let mut second = Waiting::of(limiter.acquire_within("key", 30 * SECOND));
    assert!(first.poll().is_none() && second.poll().is_none());
    store.asked();
    for _ in 0..5 {
        clock.advance(SECOND);
        assert!(first.poll_if_woken().is_none() && second.poll_if_woken().is_none());
    }
    assert_eq!(store.asked().len(), 5);
    assert_eq!(pollster::block_on(permit.release()), Ok(()));
    assert!(first.poll_if_woken().is_none(), "this process gets no notification");
    clock.advance(SECOND);
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_cancelled_wait_for_a_permit_releases_it() {
    let (limiter, store, _) = limiter("1/hour concurrency");
    store.hold();
    let mut cancelled = Waiting::of(limiter.acquire_within("key", 30 * SECOND));
    assert!(cancelled.poll().is_none());
    drop(cancelled);
    store.let_go();
    assert_eq!(store.run_spawned(), 1);
    assert!(pollster::block_on(limiter.acquire_within("key", Duration::ZERO)).is_ok());
}

#[test]
fn waiting_for_a_permit_continues_while_the_store_is_unavailable() {
    let closed = policy("api", "1/hour concurrency").per(["key"]).failing(FailureMode::Closed);
    let clock = ManualClock::new();
    let store = Double::new(&clock);
    let builder = SharedLimiter::builder(store.clone()).clock(clock.clone());
    let limiter = builder.policies(PolicySet::new([closed]).unwrap()).build().unwrap();
    store.fail(StoreError::TimedOut);
    let mut waiter = Waiting::of(limiter.acquire_within("key", 30 * SECOND));
    assert!(waiter.poll().is_none());
    for looks in 1..=3 {
        assert_eq!(store.asked().len(), 1, "look {looks}");
        // The store may have granted the permit without answering, so it is released.
        assert_eq!(store.run_spawned(), 1, "look {looks}");
        assert_eq!(store.asked().len(), 1, "release after look {looks}");
        assert!(waiter.poll_if_woken().is_none(), "that release does not wake the waiter");
        clock.advance(SECOND);
        assert!(waiter.poll_if_woken().is_none());
    }
    store.recover();
    clock.advance(SECOND);
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_permit_acquired_while_the_store_is_unavailable_is_held_locally() {
    let (limiter, store, clock) = limiter("1/minute concurrency");
    let acquire = || pollster::block_on(limiter.acquire("key")).unwrap();
    store.fail(StoreError::TimedOut);
    let permit = acquire().into_result().unwrap();
    let denied = acquire();
    assert!(denied.permit.is_none() && denied.decision.is_degraded());
    assert_eq!(store.run_spawned(), 1, "the answer was lost: the store may hold the permit");
    clock.advance(40 * SECOND);
    assert_eq!(pollster::block_on(permit.renew()), Ok(true));
    clock.advance(40 * SECOND);
    assert!(acquire().permit.is_none());
    assert_eq!(pollster::block_on(permit.release()), Ok(()));
    assert!(acquire().permit.is_some());
    store.recover();
    let held = acquire().into_result().unwrap();
    store.fail(StoreError::Unavailable("away".into()));
    let away = || StoreError::Unavailable("away".into());
    assert_eq!(pollster::block_on(held.renew()), Err(away()));
    store.run_spawned();
    assert_eq!(pollster::block_on(held.release()), Err(away()));
    assert_eq!(store.run_spawned(), 1, "the failed release is retried once");
}

#[test]
fn a_request_acquires_permits_of_the_policies_that_cover_it() {
    let policies = PolicySet::new([
        policy("jobs", "1/minute concurrency").per(["user"]),
        policy("all", "100/minute"),
    ]);
    let limiter = SharedLimiter::new(Double::new(&ManualClock::new()), policies.unwrap());
    let request = Request::new().with("user", "alice").id("7").unwrap();
    let acquire = || pollster::block_on(limiter.acquire_request(&request)).unwrap();
    let first = acquire();
    assert!(first.permit.is_some());
    assert!(acquire().permit.is_none(), "the same request id acquires another permit");
    let counts: Vec<_> =
        limiter.stats().policies.iter().map(|stats| (stats.allowed, stats.denied)).collect();
    assert_eq!(counts, [(1, 1), (1, 0)]);
}

/// In a shared store, everything that a concurrency limit admits has a permit id, so a refund has nothing to take back.
#[test]
fn a_refund_skips_concurrency_limits() {
    let store = Double::new(&ManualClock::new());
    let builder = SharedLimiter::builder(store.clone());
    let limiter = builder.limit("2/hour").limit("3/minute concurrency").build().unwrap();
    assert!(check(&limiter, "key").is_allowed());
    assert_eq!(store.asked().len(), 2);
    pollster::block_on(limiter.refund("key", 1)).unwrap();
    assert_eq!(store.asked().len(), 1, "only the window limit");
    let jobs =
        Charge::new("jobs".parse().unwrap(), KeyRef::new(b"key"), limit("3/minute concurrency"));
    pollster::block_on(limiter.charges().refund(&[jobs, jobs.holding(1)])).unwrap();
    assert_eq!(store.asked(), []);
}

/// If the store fails, a reset still clears the local counters of all limits and calls the store for each limit.
#[test]
fn a_reset_continues_after_a_failure() {
    let (store, away) = (Double::new(&ManualClock::new()), StoreError::TimedOut);
    let builder = SharedLimiter::builder(store.clone());
    let limiter = builder.limit("9/hour").limit("2/day").build().unwrap();
    store.fail(away.clone());
    let spend = || [(); 3].map(|()| check(&limiter, "key").is_allowed());
    assert_eq!(spend(), [true, true, false]);
    store.asked();
    assert_eq!(pollster::block_on(limiter.reset("key")), Err(away.clone()));
    assert_eq!(store.asked().len(), 2);
    assert_eq!(spend(), [true, true, false]);
    store.asked();
    let request = Request::new().with("key", "key");
    let plan = limiter.charges().plan(&request);
    let charges = plan.charges(1).unwrap();
    assert_eq!(pollster::block_on(limiter.charges().reset(&charges)), Err(away));
    assert_eq!(store.asked().len(), 2);
    assert_eq!(spend(), [true, true, false]);
}

/// A runtime with several threads can spawn every future.
#[test]
fn every_future_can_be_sent() {
    fn sent<F: Send>(future: F) {
        drop(future);
    }

    let (limiter, _, _) = limiter("1/hour");
    let (request, charges) = (Request::new(), []);
    sent(limiter.check("key"));
    sent(limiter.check_many(&["key"]));
    sent(limiter.check_request(&request));
    sent(limiter.charges().check(&charges));
    sent(limiter.until_ready("key", SECOND));
    sent(limiter.acquire_within("key", SECOND));
    sent(limiter.acquire("key"));
    sent(limiter.acquire_request(&request));
    sent(limiter.refund("key", 1));
    sent(limiter.reset("key"));
    let permit = pollster::block_on(limiter.acquire("key")).unwrap().into_result().unwrap();
    sent(permit.renew());
    sent(permit.release());
    let own = Limiter::memory(limit("1/hour"));
    sent(own.until_ready("key", SECOND));
    sent(own.acquire_within("key", SECOND));
}
