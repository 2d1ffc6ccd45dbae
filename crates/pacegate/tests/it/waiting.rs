//! Waiting: the tests poll each future themselves and advance a manual clock.

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
    time::Duration,
};

use pacegate::{
    Clock, Decision, Limiter, ManualClock, Permit, Policy, PolicySet, Timestamp, Wait, WaitError,
};

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

/// A future with a flag that is set if it was woken since its last poll.
pub(crate) struct Waiting<'a, T = Result<Decision, WaitError>> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    woken: Arc<Flag>,
    done: bool,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a> Waiting<'a> {
    fn new(limiter: &'a Limiter, cost: u64, within: Duration) -> Self {
        Self::of(limiter.until_ready_cost("key", cost, within))
    }
}

impl<'a, T> Waiting<'a, T> {
    pub(crate) fn of(future: impl Future<Output = T> + 'a) -> Self {
        Self { future: Box::pin(future), woken: Arc::default(), done: false }
    }

    pub(crate) fn poll(&mut self) -> Option<T> {
        assert!(!self.done, "a finished wait was woken");
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = self.woken.clone().into();
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                self.done = true;
                Some(result)
            }
            Poll::Pending => None,
        }
    }

    /// Polls only if woken, as an executor would.
    pub(crate) fn poll_if_woken(&mut self) -> Option<T> {
        if self.woken.0.load(Ordering::SeqCst) { self.poll() } else { None }
    }
}

#[test]
fn available_units_are_taken_without_waiting() {
    let (limiter, _) = limiter("1/second burst 2");
    let decision = pollster::block_on(pin!(limiter.until_ready("key", Duration::ZERO))).unwrap();
    assert_eq!(decision.remaining(), 1);
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut waiters: Vec<_> = (0..5).map(|_| Waiting::new(&limiter, 1, 10 * SECOND)).collect();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_none());
    }
    let mut served = Vec::new();
    for _ in 0..5 {
        clock.advance(SECOND);
        // Woken waiters are polled last to first, and the first is still served first.
        for _ in 0..2 {
            for (number, waiter) in waiters.iter_mut().enumerate().rev() {
                if let Some(result) = waiter.poll_if_woken() {
                    assert!(result.unwrap().is_allowed());
                    served.push(number);
                }
            }
        }
        // An executor drops a finished future. Here finished futures are kept, so each must leave its queue itself.
    }
    assert_eq!(served, [0, 1, 2, 3, 4]);
}

#[test]
fn a_deadline_that_cannot_be_met_fails_at_once() {
    let (limiter, _) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let too_long = |needed| Some(Err(WaitError::TooLong { needed: Some(needed) }));
    let mut hopeless = Waiting::new(&limiter, 1, SECOND - Duration::from_micros(1));
    assert_eq!(hopeless.poll(), too_long(SECOND));
    let mut first = Waiting::new(&limiter, 1, SECOND);
    assert!(first.poll().is_none(), "a deadline of exactly the wait can be met");
    // The waiters ahead count: the second in the queue needs two seconds.
    let mut second = Waiting::new(&limiter, 1, SECOND);
    assert_eq!(second.poll(), too_long(2 * SECOND));
    let mut patient = Waiting::new(&limiter, 1, 2 * SECOND);
    assert!(patient.poll().is_none());
}

#[test]
fn a_cancelled_wait_charges_nothing_and_blocks_no_other() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut first = Waiting::new(&limiter, 1, 10 * SECOND);
    let mut second = Waiting::new(&limiter, 1, 10 * SECOND);
    assert!(first.poll().is_none() && second.poll().is_none());
    drop(first);
    assert!(second.poll_if_woken().is_none(), "it is first, but no unit is available yet");
    assert_eq!(clock.sleepers(), 1, "the cancelled wait has left the clock");
    clock.advance(SECOND);
    assert!(second.poll_if_woken().is_some_and(|result| result.is_ok()));
    assert_eq!(clock.sleepers(), 0);
    clock.advance(SECOND);
    assert_eq!(limiter.peek("key").remaining(), 1, "the cancelled wait took nothing");
}

#[test]
fn a_wait_without_a_deadline_lasts_as_long_as_it_takes() {
    let day = Duration::from_secs(86_400);
    let (limiter, clock) = limiter("1/day burst 1");
    let _ = limiter.check("key");
    let forever = || Waiting::of(limiter.until_ready("key", Wait::forever()));
    let (mut first, mut second) = (forever(), forever());
    assert!(first.poll().is_none() && second.poll().is_none());
    clock.advance(day - Duration::from_micros(1));
    assert!(first.poll_if_woken().is_none());
    clock.advance(Duration::from_micros(1));
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
    assert!(second.poll_if_woken().is_none());
    clock.advance(day);
    assert!(second.poll_if_woken().is_some_and(|result| result.is_ok()));
    let never =
        pollster::block_on(limiter.until_ready_with("key", crate::limit("0/day"), Wait::forever()));
    assert_eq!(never, Err(WaitError::TooLong { needed: None }), "it would wait for ever");
}

#[test]
fn jitter_delays_callers_that_had_to_wait() {
    let (limiter, clock) = limiter("1/second burst 1");
    let wait = Wait::up_to(60 * SECOND).jitter(10 * SECOND);
    let keys: Vec<u32> = (0..30).collect();
    for &key in &keys {
        let mut free = Waiting::of(limiter.until_ready(key, wait));
        assert!(free.poll().is_some_and(|result| result.is_ok()), "nothing to wait for");
    }
    let mut waiters: Vec<_> =
        keys.iter().map(|&key| Some(Waiting::of(limiter.until_ready(key, wait)))).collect();
    assert!(waiters.iter_mut().flatten().all(|waiter| waiter.poll().is_none()));
    clock.advance(SECOND);
    let mut served_in_step = [0; 11];
    for served in &mut served_in_step {
        for waiter in &mut waiters {
            if let Some(result) = waiter.as_mut().and_then(Waiting::poll_if_woken) {
                assert!(result.unwrap().is_allowed());
                *served += 1;
                *waiter = None;
            }
        }
        if waiters.iter().any(Option::is_some) {
            clock.advance(SECOND);
        }
    }
    assert_eq!(served_in_step.iter().sum::<usize>(), keys.len(), "none is delayed for longer");
    let steps = served_in_step.iter().filter(|served| **served > 0).count();
    assert!(steps > 2, "the delays differ: {served_in_step:?}");
}

#[test]
fn units_are_charged_before_the_jitter_which_ends_at_the_deadline() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let wait = Wait::up_to(5 * SECOND).jitter(3_600 * SECOND);
    let mut waiter = Waiting::of(limiter.until_ready("key", wait));
    assert!(waiter.poll().is_none());
    clock.advance(SECOND);
    let early = waiter.poll_if_woken();
    assert_eq!(limiter.peek("key").remaining(), 0, "the unit is charged");
    clock.advance(4 * SECOND);
    let result = early.or_else(|| waiter.poll_if_woken());
    assert!(result.is_some_and(|result| result.is_ok()), "the deadline ends the delay");
}

#[test]
fn too_many_waiters_are_refused() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("1/second burst 1").max_waiters(2).clock(clock);
    let limiter = limiter.build().unwrap();
    let _ = limiter.check("key");
    let mut waiters: Vec<_> = (0..3).map(|_| Waiting::new(&limiter, 1, 60 * SECOND)).collect();
    assert!(waiters[0].poll().is_none() && waiters[1].poll().is_none());
    assert_eq!(waiters[2].poll(), Some(Err(WaitError::QueueFull { waiting: 2 })));
    waiters.remove(0);
    let mut another = Waiting::new(&limiter, 1, 60 * SECOND);
    assert!(another.poll().is_none(), "a place is free again");
}

#[test]
fn a_wait_that_cannot_succeed_fails_at_once() {
    let (limiter, _) = limiter("0/second");
    let mut never = Waiting::new(&limiter, 1, 60 * SECOND);
    assert_eq!(never.poll(), Some(Err(WaitError::TooLong { needed: None })));
    let (limiter, _) = crate::limiter("3/second");
    assert!(matches!(Waiting::new(&limiter, 4, SECOND).poll(), Some(Err(WaitError::Cost(_)))));
}

#[test]
fn a_wait_times_out_if_others_take_its_units() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut first = Waiting::new(&limiter, 1, 3 * SECOND);
    let mut second = Waiting::new(&limiter, 1, 2 * SECOND);
    assert!(first.poll().is_none() && second.poll().is_none());
    for _ in 0..2 {
        clock.advance(SECOND);
        // A caller that does not queue takes the unit first.
        assert!(limiter.check("key").is_allowed());
        assert!(first.poll_if_woken().is_none());
    }
    assert_eq!(second.poll_if_woken(), Some(Err(WaitError::TimedOut)));
    clock.advance(SECOND);
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn every_algorithm_knows_when_it_will_be_ready() {
    for text in
        ["4/second", "4/second sliding-window", "4/second sliding-log", "4/second token-bucket"]
    {
        let (limiter, clock) = limiter(text);
        let _ = limiter.check_cost("key", 4).unwrap();
        let mut waiters: Vec<_> = (0..6).map(|_| Waiting::new(&limiter, 2, 60 * SECOND)).collect();
        for waiter in &mut waiters {
            assert!(waiter.poll().is_none());
        }
        let mut last = clock.now();
        let mut served = 0;
        while let Some(next) = clock.next_wake() {
            assert!(next >= last, "{text}");
            last = next;
            clock.set(next);
            // One pass in order serves everyone whose turn has come.
            for waiter in &mut waiters {
                served += u32::from(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
            }
        }
        assert_eq!(served, 6, "{text}");
    }
}

#[test]
fn refunds_and_resets_wake_the_first_in_the_queue_at_once() {
    type GiveBack = (&'static str, fn(&Limiter));
    let give_back: [GiveBack; 2] =
        [("refund", |limiter| limiter.refund("key", 1)), ("reset", |limiter| limiter.reset("key"))];
    for (name, give_back) in give_back {
        let (limiter, clock) = limiter("1/hour token-bucket");
        let _ = limiter.check("key");
        let mut first = Waiting::new(&limiter, 1, 7_200 * SECOND);
        let mut second = Waiting::new(&limiter, 1, 7_200 * SECOND);
        assert!(first.poll().is_none() && second.poll().is_none());
        clock.advance(SECOND);
        give_back(&limiter);
        assert!(second.poll_if_woken().is_none(), "{name}: it is not the second's turn");
        assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()), "{name}");
    }
}

#[test]
fn a_returned_permit_goes_to_the_first_in_the_queue_at_once() {
    // Also if the concurrency limit is neither the only nor the first limit.
    for limits in [vec!["1/hour concurrency"], vec!["100/day", "1/hour concurrency"]] {
        let builder = Limiter::builder().clock(ManualClock::new());
        let builder = limits.iter().fold(builder, |builder, limit| builder.limit(*limit));
        let limiter = builder.build().unwrap();
        let permit = limiter.acquire("key").into_result().unwrap();
        let mut waiter = Waiting::new(&limiter, 1, 7_200 * SECOND);
        assert!(waiter.poll().is_none());
        drop(permit);
        assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()), "{limits:?}");
    }
}

#[test]
fn a_wait_for_a_permit_lasts_until_its_deadline() {
    let (limiter, clock) = limiter("1/minute concurrency");
    let permit = limiter.acquire("key").into_result().unwrap();
    let mut first = Waiting::new(&limiter, 1, 30 * SECOND);
    let mut second = Waiting::new(&limiter, 1, 30 * SECOND);
    let mut hopeful = Waiting::new(&limiter, 1, 50 * SECOND);
    let mut waiters = [&mut first, &mut second, &mut hopeful];
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    clock.advance(30 * SECOND - Duration::from_micros(1));
    assert!(waiters.iter_mut().all(|waiter| waiter.poll_if_woken().is_none()));
    clock.advance(Duration::from_micros(1));
    assert_eq!(first.poll_if_woken(), Some(Err(WaitError::TimedOut)));
    assert_eq!(second.poll_if_woken(), Some(Err(WaitError::TimedOut)));
    assert!(hopeful.poll_if_woken().is_none());
    drop(permit);
    assert!(hopeful.poll_if_woken().is_some_and(|result| result.is_ok()));
    let own = limiter.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (2, 2));
    // A timer may be late.
    let mut late = Waiting::new(&limiter, 1, SECOND);
    assert!(late.poll().is_none());
    clock.advance(2 * SECOND);
    assert_eq!(late.poll_if_woken(), Some(Err(WaitError::TimedOut)));
    // With a timeout of zero it checks once.
    let mut hurried = Waiting::new(&limiter, 1, Duration::ZERO);
    assert_eq!(hurried.poll(), Some(Err(WaitError::TimedOut)));
}

#[test]
fn permits_go_to_waiters_in_the_order_they_came() {
    let (limiter, _) = limiter("2/hour concurrency");
    let mut held: VecDeque<_> =
        (0..2).map(|_| limiter.acquire("key").into_result().unwrap()).collect();
    let wait = |_| Waiting::of(limiter.acquire_within("key", 60 * SECOND));
    let mut waiters: Vec<_> = (0..5).map(wait).collect();
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    for next in 0..5 {
        held.pop_front();
        // Waiters are polled last to first, and the first still gets the permit.
        for _ in 0..2 {
            for (number, waiter) in waiters.iter_mut().enumerate().rev() {
                if let Some(permit) = waiter.poll_if_woken() {
                    assert_eq!(number, next);
                    held.push_back(permit.unwrap());
                }
            }
        }
        assert_eq!(held.len(), 2);
        assert!(limiter.acquire("key").permit.is_none());
    }
    assert!(held.iter().all(Permit::renew), "they can be renewed like any other permit");
    held.clear();
    assert_eq!(limiter.peek("key").remaining(), 2);
}

#[test]
fn a_cancelled_wait_for_a_permit_takes_none() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("1/hour concurrency").max_waiters(2);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let permit = limiter.acquire("key").into_result().unwrap();
    let mut waiters = [(); 3].map(|()| Waiting::of(limiter.acquire_within("key", 60 * SECOND)));
    let [first, second, third] = &mut waiters;
    assert!(first.poll().is_none() && second.poll().is_none());
    let full = third.poll().map(|result| result.map(|_| ()));
    assert_eq!(full, Some(Err(WaitError::QueueFull { waiting: 2 })));
    let [first, mut second, _] = waiters;
    drop(permit);
    // The first was woken, but is dropped before it is polled.
    drop(first);
    let permit = second.poll_if_woken().unwrap().unwrap();
    assert_eq!(clock.sleepers(), 0);
    drop(permit);
    assert_eq!(limiter.peek("key").remaining(), 1);
}

#[test]
fn an_expired_permit_is_available_at_that_instant() {
    let (limiter, clock) = limiter("1/minute concurrency");
    let permit = limiter.acquire("key").into_result().unwrap();
    clock.advance(SECOND / 4);
    let mut waiter = Waiting::of(limiter.acquire_within("key", 60 * SECOND));
    assert!(waiter.poll().is_none());
    let ends = clock.now().after(60 * SECOND - SECOND / 4);
    while clock.next_wake() < Some(ends) {
        clock.set(clock.next_wake().unwrap());
        assert!(waiter.poll_if_woken().is_none());
    }
    assert_eq!(clock.next_wake(), Some(ends));
    clock.set(ends);
    let next = waiter.poll_if_woken().unwrap().unwrap();
    assert!(!permit.renew() && next.renew());
}

/// A release through explicit charges with a different set of limits does not notify this queue.
#[test]
fn a_permit_released_without_notification_is_found_within_a_second() {
    let builder = Limiter::builder().limit("9/day").limit("1/hour concurrency");
    let clock = ManualClock::new();
    let limiter = builder.clock(clock.clone()).build().unwrap();
    let held = pacegate::Charge::new(
        pacegate::PolicyName::DEFAULT,
        pacegate::KeyRef::new(b"key"),
        crate::limit("1/hour concurrency"),
    )
    .counter(pacegate::Counter::Policy)
    .holding(limiter.charges().new_permit_id());
    assert!(limiter.charges().check(&[held]).unwrap().is_allowed());
    let mut waiter = Waiting::of(limiter.acquire_within("key", 60 * SECOND));
    assert!(waiter.poll().is_none());
    limiter.charges().release(&[held]);
    assert_eq!(clock.next_wake(), Some(clock.now().after(SECOND)));
    clock.advance(SECOND);
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_wait_for_a_permit_includes_the_wait_for_other_limits() {
    let limits = ["1/minute concurrency", "1/hour token-bucket"];
    let clock = ManualClock::new();
    let builder = Limiter::builder().clock(clock.clone());
    let builder = limits.iter().fold(builder, |builder, limit| builder.limit(*limit));
    let limiter = builder.build().unwrap();
    let permit = limiter.acquire("key").into_result().unwrap();
    let wait = |within| Waiting::of(limiter.acquire_within("key", within));
    let hour = 3_600 * SECOND;
    let too_long = wait(hour - Duration::from_micros(1)).poll().map(|result| result.map(|_| ()));
    assert_eq!(too_long, Some(Err(WaitError::TooLong { needed: Some(hour) })));
    let mut patient = wait(hour);
    assert!(patient.poll().is_none());
    assert_eq!(clock.next_wake(), Some(clock.now().after(hour)), "and no earlier wake-up");
    drop(permit);
    assert!(patient.poll_if_woken().is_none(), "a permit is free, but the bucket is empty");
    clock.advance(hour);
    assert!(patient.poll_if_woken().is_some_and(|result| result.is_ok()));

    let (none, _) = crate::limiter("0/minute concurrency");
    let never = pollster::block_on(none.acquire_within("key", SECOND)).map(|_| ());
    assert_eq!(never, Err(WaitError::TooLong { needed: None }));
}

#[test]
fn a_request_without_limits_gets_a_permit_at_once() {
    let elsewhere = Policy::new("elsewhere", [crate::limit("1/hour concurrency")])
        .matching("path", pacegate::policy::Condition::equal("/x"));
    let limiter = Limiter::builder().policies(PolicySet::new([elsewhere]).unwrap());
    let limiter = limiter.build().unwrap();
    let wait = || pollster::block_on(limiter.acquire_within("key", Duration::ZERO));
    assert!(wait().unwrap().renew() && wait().is_ok());
    let ready = pollster::block_on(limiter.until_ready("key", Duration::ZERO)).unwrap();
    assert_eq!((ready.is_allowed(), ready.policy()), (true, None));
}

#[test]
fn a_later_waiter_does_not_overtake_the_queue() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut first = Waiting::new(&limiter, 1, 10 * SECOND);
    assert!(first.poll().is_none());
    // A unit is available and the first in the queue has not been polled yet: the newcomer must not take it.
    clock.advance(SECOND);
    let mut later = Waiting::new(&limiter, 1, 10 * SECOND);
    assert!(later.poll().is_none());
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
    clock.advance(SECOND);
    assert!(later.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_clock_that_steps_back_makes_no_wait_longer() {
    for text in ["1/second", "1/second sliding-log", "1/second token-bucket"] {
        let (limiter, clock) = limiter(text);
        let _ = limiter.check("key");
        let mut first = Waiting::new(&limiter, 1, 60 * SECOND);
        assert!(first.poll().is_none(), "{text}");
        step_back(&clock, 10 * SECOND);
        // One second for the first and one for the second, as if the unit had been used just now.
        let mut second = Waiting::new(&limiter, 1, 2 * SECOND - Duration::from_micros(1));
        let needed = Some(2 * SECOND);
        assert_eq!(second.poll(), Some(Err(WaitError::TooLong { needed })), "{text}");
        let mut third = Waiting::new(&limiter, 1, 2 * SECOND);
        assert!(third.poll().is_none(), "{text}");
    }
}

/// The clock steps back by an hour while two waiters wait for two seconds: their waits still end in time.
#[test]
fn a_clock_that_steps_back_does_not_delay_waiters() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut first = Waiting::new(&limiter, 1, 2 * SECOND);
    let mut second = Waiting::new(&limiter, 1, 2 * SECOND);
    assert!(first.poll().is_none() && second.poll().is_none());
    step_back(&clock, 3_600 * SECOND);
    assert_eq!(clock.next_wake(), Some(clock.now().after(SECOND)), "as long as before the step");
    clock.advance(SECOND);
    assert!(first.poll_if_woken().is_none(), "as if the unit had been used just now");
    clock.advance(SECOND);
    assert_eq!(second.poll_if_woken(), Some(Err(WaitError::TimedOut)), "its two seconds are over");
    assert!(first.poll_if_woken().is_some_and(|result| result.is_ok()));
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn a_clock_that_steps_back_postpones_no_deadline() {
    let (limiter, clock) = limiter("1/second burst 1");
    let _ = limiter.check("key");
    let mut waiter = Waiting::new(&limiter, 1, 2 * SECOND);
    assert!(waiter.poll().is_none());
    clock.advance(SECOND / 2);
    step_back(&clock, 3_600 * SECOND);
    clock.advance(600 * SECOND);
    let needed = Some(SECOND);
    assert_eq!(waiter.poll_if_woken(), Some(Err(WaitError::TooLong { needed })));
}

fn step_back(clock: &ManualClock, by: Duration) {
    let by = u64::try_from(by.as_micros()).unwrap();
    clock.set(Timestamp::from_micros(clock.now().as_micros() - by));
}

#[test]
fn the_slowest_of_several_limits_determines_the_wait() {
    let limiter = Limiter::builder().limit("1/second").limit("1/hour token-bucket");
    let limiter = limiter.clock(ManualClock::new()).build().unwrap();
    let _ = limiter.check("key");
    let mut first = Waiting::new(&limiter, 1, 10_000 * SECOND);
    assert!(first.poll().is_none());
    let mut second = Waiting::new(&limiter, 1, 10 * SECOND);
    let needed = Some(7_200 * SECOND);
    assert_eq!(second.poll(), Some(Err(WaitError::TooLong { needed })));
}

#[test]
fn a_refund_that_is_too_small_keeps_the_waiter_waiting() {
    let (limiter, _) = limiter("2/hour token-bucket");
    let _ = limiter.check_cost("key", 2).unwrap();
    let mut waiter = Waiting::new(&limiter, 2, 7_200 * SECOND);
    assert!(waiter.poll().is_none());
    limiter.refund("key", 1);
    assert!(waiter.poll_if_woken().is_none(), "one of two units was refunded");
    assert!(!waiter.woken.0.load(Ordering::SeqCst), "checked once, and waits again");
    limiter.refund("key", 1);
    assert!(waiter.poll_if_woken().is_some_and(|result| result.is_ok()));
}

#[test]
fn a_wait_is_counted_once_by_how_it_ends() {
    let (limiter, clock) = limiter("1/second burst 1");
    let counts = || {
        let own = limiter.stats().policies[0];
        (own.allowed, own.denied)
    };
    let _ = limiter.check("key");
    let mut served = Waiting::new(&limiter, 1, 10 * SECOND);
    let mut cancelled = Waiting::new(&limiter, 1, 10 * SECOND);
    let mut spoilt = Waiting::new(&limiter, 1, 2 * SECOND);
    let mut hopeless = Waiting::new(&limiter, 1, SECOND);
    assert!(served.poll().is_none() && cancelled.poll().is_none());
    assert!(spoilt.poll().is_some_and(|result| result.is_err()), "it would take three seconds");
    assert_eq!(counts(), (1, 1), "rejected immediately, and counted without a check");
    assert!(hopeless.poll().is_some_and(|result| result.is_err()));
    assert_eq!(counts(), (1, 2));
    drop(cancelled);
    for _ in 0..3 {
        clock.advance(SECOND);
        assert!(limiter.check("key").is_allowed());
        assert!(served.poll_if_woken().is_none(), "the unit was taken by another caller");
    }
    assert_eq!(counts(), (4, 2));
    clock.advance(SECOND);
    assert!(served.poll_if_woken().is_some_and(|result| result.is_ok()));
    assert_eq!(counts(), (5, 2));
    let mut late = Waiting::new(&limiter, 1, SECOND / 2);
    assert!(late.poll().is_some_and(|result| result.is_err()));
    assert_eq!(counts(), (5, 3), "denied and counted once");
}

#[test]
fn a_cost_that_never_fits_fails_in_a_queue_as_well() {
    let (limiter, _) = limiter("4/second sliding-window");
    let _ = limiter.check_cost("key", 4).unwrap();
    let mut first = Waiting::new(&limiter, 1, 60 * SECOND);
    assert!(first.poll().is_none());
    let mut never = Waiting::new(&limiter, 5, 60 * SECOND);
    assert!(matches!(never.poll(), Some(Err(WaitError::Cost(_)))));
}

#[test]
fn a_policy_in_shadow_mode_delays_no_waiter() {
    let policy = |name: &str, text: &str| Policy::new(name, [crate::limit(text)]).per(["key"]);
    let tried = policy("tried", "2/day sliding-window").shadow();
    let policies = PolicySet::new([policy("real", "2/second burst 2"), tried]).unwrap();
    let clock = ManualClock::new();
    let limiter = Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap();
    let _ = limiter.check_cost("key", 2).unwrap();
    let mut waiters = [1, 2].map(|cost| Waiting::new(&limiter, cost, 2 * SECOND));
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_none()));
    clock.advance(SECOND / 2);
    assert!(waiters[0].poll_if_woken().is_some_and(|result| result.is_ok()));
    assert!(waiters[1].poll_if_woken().is_none());
    clock.advance(SECOND);
    assert!(waiters[1].poll_if_woken().is_some_and(|result| result.is_ok()));
}

/// A settlement returns units, so the next caller is served at once.
#[test]
fn a_reservation_waits_for_its_estimate() {
    for limit in ["10/minute", "10/minute sliding-window", "10/minute sliding-log"] {
        let (limiter, clock) = limiter(limit);
        let reserve =
            |estimate| limiter.reserve_within("key", estimate, 300 * SECOND, 200 * SECOND);
        let first = Waiting::of(reserve(8)).poll().unwrap().unwrap();
        let mut second = Waiting::of(reserve(6));
        assert!(second.poll().is_none());
        clock.advance(SECOND);
        assert!(first.settle(3));
        let second = second.poll_if_woken().expect(limit).unwrap();
        assert_eq!(limiter.peek("key").remaining(), 1);
        let mut third = Waiting::of(limiter.until_ready_cost("key", 8, 200 * SECOND));
        assert!(third.poll().is_none());
        assert!(second.cancel());
        assert!(third.poll_if_woken().is_none(), "three units are still used");
        assert!(!first.settle(3), "settled once");
    }
}

#[test]
fn a_reservation_that_cannot_succeed_fails_at_once() {
    let (limiter, _) = limiter("10/minute");
    let reserve = |estimate| limiter.reserve_within("key", estimate, SECOND, SECOND);
    let too_high = Waiting::of(reserve(11)).poll().unwrap().unwrap_err();
    assert!(matches!(too_high, WaitError::Cost(_)), "{too_high}");
    let _first = Waiting::of(reserve(8)).poll().unwrap().unwrap();
    let too_late = Waiting::of(reserve(8)).poll().unwrap().unwrap_err();
    assert!(matches!(too_late, WaitError::TooLong { .. }), "{too_late}");
    assert_eq!(limiter.peek("key").remaining(), 2, "nothing was charged");
}
