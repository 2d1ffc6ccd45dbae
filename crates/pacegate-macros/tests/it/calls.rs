//! Charges of calls, and results of denied calls.

use std::{cell::Cell, time::Duration};

use pacegate::{Denied, Limit, Limiter, SharedLimiter, registry};
use pacegate_macros::rate_limit;

use crate::{admitted, limiter};

#[derive(Debug, PartialEq)]
enum Error {
    Busy(Option<Duration>),
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        Self::Busy(denied.decision().retry_after())
    }
}

struct User {
    id: String,
    limit: Limit,
}

fn user(id: &str) -> User {
    User { id: id.to_owned(), limit: Limit::per_hour(id.len() as u32) }
}

#[test]
fn each_key_has_its_budget() {
    #[rate_limit("2/minute", key = user.id, limiter = limiter)]
    fn greet(limiter: &Limiter, user: &User) -> Result<String, Error> {
        Ok(format!("hello {}", user.id))
    }

    let (limiter, clock) = limiter();
    for _ in 0..2 {
        assert_eq!(greet(&limiter, &user("alice")), Ok("hello alice".to_owned()));
    }
    clock.advance(Duration::from_secs(18));
    let denied = greet(&limiter, &user("alice"));
    assert_eq!(denied, Err(Error::Busy(Some(Duration::from_secs(42)))));
    assert!(greet(&limiter, &user("bob")).is_ok());
    clock.advance(Duration::from_secs(42));
    assert!(greet(&limiter, &user("alice")).is_ok());
}

#[test]
fn a_denied_call_does_not_run() {
    #[rate_limit("3/minute", limiter = limiter)]
    fn count(limiter: &Limiter, runs: &Cell<u32>) -> Result<(), Denied> {
        runs.set(runs.get() + 1);
        Ok(())
    }

    let ((limiter, _), runs) = (limiter(), Cell::new(0));
    assert_eq!(admitted(5, || count(&limiter, &runs)), 3);
    assert_eq!(runs.get(), 3);
}

#[test]
fn without_a_key_there_is_one_budget() {
    #[rate_limit("2/minute", limiter = limiter)]
    fn plain(limiter: &Limiter, _user: &str) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("2/minute", scope = "global", limiter = limiter)]
    fn global(limiter: &Limiter, _user: &str) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("2/minute", scope = "key", key = user, limiter = limiter)]
    fn keyed(limiter: &Limiter, user: &str) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    let users = ["a", "b", "c", "d"];
    let run = |call: fn(&Limiter, &str) -> Result<(), Denied>| {
        let mut users = users.iter();
        admitted(4, || call(&limiter, users.next().unwrap()))
    };
    assert_eq!([run(plain), run(global), run(keyed)], [2, 2, 4]);
}

#[test]
fn a_cost_is_charged_whole_or_not_at_all() {
    #[rate_limit("10/minute", cost = items.len(), limiter = limiter)]
    fn send(limiter: &Limiter, items: &[u8]) -> Result<usize, Denied> {
        Ok(items.len())
    }

    let (limiter, _) = limiter();
    assert_eq!(send(&limiter, &[0; 7]), Ok(7));
    assert_eq!(send(&limiter, &[0; 4]).unwrap_err().decision().remaining(), 3);
    assert_eq!(send(&limiter, &[0; 3]), Ok(3));
    let never = send(&limiter, &[0; 11]).unwrap_err();
    assert_eq!(never.decision().retry_after(), None);
    let told = "denied by policy `it.calls.a_cost_is_charged_whole_or_not_at_all.send` (10/minute), permanently";
    assert_eq!(never.to_string(), told);
}

#[test]
fn plain_numbers_are_costs() {
    #[rate_limit("10/minute", cost = 5, limiter = limiter)]
    fn heavy(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("10/minute", cost = if big { 4_u32 } else { 1 }, limiter = limiter)]
    fn sized(limiter: &Limiter, big: bool) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(4, || heavy(&limiter)), 2);
    assert_eq!(admitted(4, || sized(&limiter, true)), 2);
    assert_eq!(admitted(4, || sized(&limiter, false)), 2);
}

#[test]
fn several_limits_are_charged_together() {
    #[rate_limit("2/minute", "3/hour", key = 7, limiter = limiter)]
    fn both(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, clock) = limiter();
    assert_eq!(admitted(4, || both(&limiter)), 2);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(4, || both(&limiter)), 1, "a denied call was charged to neither");
    let denied = both(&limiter).unwrap_err().decision();
    assert_eq!(denied.limit(), Some(Limit::per_hour(3)));
}

#[test]
fn a_limit_may_be_found_for_each_call() {
    #[rate_limit(limit = user.limit, key = user.id, limiter = limiter)]
    fn call(limiter: &Limiter, user: &User) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(9, || call(&limiter, &user("abc"))), 3);
    assert_eq!(admitted(9, || call(&limiter, &user("abcde"))), 5);
}

#[test]
fn a_switch_is_looked_at_for_each_call() {
    fn key() -> u32 {
        panic!("not looked at while off");
    }

    #[rate_limit("1/minute", key = key(), enabled = *on, limiter = limiter)]
    fn guarded(limiter: &Limiter, on: &bool) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", enabled = on, limiter = limiter)]
    fn switched(limiter: &Limiter, on: bool) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(3, || guarded(&limiter, &false)), 3);
    assert_eq!(admitted(3, || switched(&limiter, false)), 3);
    assert_eq!(admitted(3, || switched(&limiter, true)), 1);
}

#[test]
fn a_denied_call_can_return_anything() {
    #[rate_limit("1/minute", on_denied = |_| None, limiter = limiter)]
    fn maybe(limiter: &Limiter) -> Option<u32> {
        Some(7)
    }

    #[rate_limit("1/minute", on_denied = |denied| denied.decision().retry_after_secs(), limiter = limiter)]
    fn seconds(limiter: &Limiter) -> Option<u64> {
        None
    }

    fn give_up(_: Denied) {}

    #[rate_limit("1/minute", on_denied = give_up, limiter = limiter)]
    fn nothing(limiter: &Limiter, runs: &mut u32) {
        *runs += 1;
    }

    let (limiter, _) = limiter();
    assert_eq!([maybe(&limiter), maybe(&limiter)], [Some(7), None]);
    assert_eq!([seconds(&limiter), seconds(&limiter)], [None, Some(60)]);
    let mut runs = 0;
    nothing(&limiter, &mut runs);
    nothing(&limiter, &mut runs);
    assert_eq!(runs, 1);
}

#[test]
fn errors_of_any_kind_take_a_denial() {
    #[rate_limit("0/minute", limiter = limiter)]
    fn boxed(limiter: &Limiter) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("it ran")?
    }

    let (limiter, _) = limiter();
    let error = boxed(&limiter).unwrap_err();
    assert!(error.downcast_ref::<Denied>().is_some(), "{error}");
}

#[test]
fn a_tuple_key_moves_none_of_its_parts() {
    #[rate_limit("1/minute", key = (user, (region, 7), attempt), limiter = limiter)]
    fn log_in(
        limiter: &Limiter,
        user: String,
        region: String,
        attempt: u64,
    ) -> Result<(String, String), Denied> {
        let _ = attempt;
        Ok((user, region))
    }

    let (limiter, _) = limiter();
    let call = |user: &str| log_in(&limiter, user.to_owned(), "eu".to_owned(), 1);
    assert_eq!(call("alice"), Ok(("alice".to_owned(), "eu".to_owned())));
    assert!(call("alice").is_err());
    assert!(call("bob").is_ok());
    assert_eq!(admitted(1, || log_in(&limiter, "carol".to_owned(), "us".to_owned(), 2)), 1);
}

#[test]
fn counters_can_be_reset() {
    #[rate_limit("1/minute", "5/hour", name = "forgotten", key = user, limiter = limiter)]
    fn fixed(limiter: &Limiter, user: &str) -> Result<(), Denied> {
        let _ = user;
        Ok(())
    }

    #[rate_limit(limit = limit, name = "forgotten-limit", limiter = limiter)]
    fn given(limiter: &Limiter, limit: Limit) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute sliding-log", name = "forgotten-shared", key = (user, 1), limiter = limiter)]
    async fn shared(limiter: &SharedLimiter, user: String) -> Result<String, Denied> {
        Ok(user)
    }

    let (limiter, _) = limiter();
    registry::reset_in(&limiter, "forgotten", "alice");
    for _ in 0..7 {
        assert!(fixed(&limiter, "alice").is_ok() && fixed(&limiter, "alice").is_err());
        registry::reset_in(&limiter, "forgotten", "alice");
    }
    assert!(fixed(&limiter, "bob").is_ok());
    registry::reset_in(&limiter, "forgotten", "alice");
    assert!(fixed(&limiter, "bob").is_err(), "other keys are limited");

    for limit in [Limit::per_hour(1), Limit::per_day(1), Limit::per_hour(1)] {
        assert!(given(&limiter, limit).is_ok() && given(&limiter, limit).is_err());
        registry::reset_in(&limiter, "forgotten-limit", ());
    }
    let limiter = SharedLimiter::from(limiter);
    for _ in 0..2 {
        let call = || pollster::block_on(shared(&limiter, "alice".to_owned()));
        assert!(call().is_ok() && call().is_err());
        let reset = registry::reset_shared(&limiter, "forgotten-shared", ("alice", 1));
        pollster::block_on(reset).unwrap();
    }
}
