//! Calls while the store is down.

use std::num::NonZeroU32;

use pacegate::{
    Charge, Denied, Limit, Outcomes, PolicySet, Reply, SharedLimiter, Store, StoreError, Update,
    policy::FailureMode::{self, Closed, Local},
};
use pacegate_macros::rate_limit;

use crate::admitted;

/// A store that answers every charge with this.
#[derive(Debug)]
struct Away(StoreError);

impl Store for Away {
    fn charge(&self, _: &[Charge<'_>], _: Option<&[u8]>) -> Reply<'_, Outcomes> {
        Reply::Ready(Err(self.0.clone()))
    }

    fn update(&self, _: &Charge<'_>, _: Update) -> Reply<'_, bool> {
        Reply::Ready(Err(self.0.clone()))
    }
}

fn limiter(error: StoreError, inline: FailureMode) -> SharedLimiter {
    let policies = PolicySet::of_limits([Limit::per_second(0)]).unwrap();
    SharedLimiter::new(Away(error), policies.inline_failure(inline))
}

const HALF: FailureMode = Local { numerator: 1, denominator: NonZeroU32::new(2).unwrap() };

#[rate_limit("4/day sliding-log", failure = "open", limiter = limiter)]
async fn open(limiter: &SharedLimiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("4/day sliding-log", failure = "closed", limiter = limiter)]
async fn closed(limiter: &SharedLimiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("4/day sliding-log", failure = "local", limiter = limiter)]
async fn local(limiter: &SharedLimiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("4/day sliding-log", failure = HALF, limiter = limiter)]
async fn half(limiter: &SharedLimiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("4/day sliding-log", limiter = limiter)]
async fn unsaid(limiter: &SharedLimiter) -> Result<(), Denied> {
    Ok(())
}

macro_rules! of_nine {
    ($limiter:expr, $function:ident) => {
        admitted(9, || pollster::block_on($function($limiter)))
    };
}

#[test]
fn each_function_has_its_failure_mode() {
    for inline in [FailureMode::Open, Closed] {
        let limiter = &limiter(StoreError::TimedOut, inline);
        assert_eq!(of_nine!(limiter, open), 9);
        assert_eq!(of_nine!(limiter, closed), 0);
        assert_eq!(of_nine!(limiter, local), 4);
        assert_eq!(of_nine!(limiter, half), 2);
        let denied = pollster::block_on(closed(limiter)).unwrap_err().decision();
        assert_eq!(denied.retry_after(), Some(FailureMode::RETRY_AFTER));
        assert!(denied.is_degraded());
    }
}

#[test]
fn unless_it_does_the_limiter_says() {
    let of = |inline| {
        let limiter = &limiter(StoreError::TimedOut, inline);
        of_nine!(limiter, unsaid)
    };
    assert_eq!([of(FailureMode::Open), of(Closed), of(HALF)], [9, 0, 2]);
}

#[test]
fn unsupported_limits_are_denied_permanently() {
    let limiter = limiter(StoreError::Unsupported("no".to_owned()), FailureMode::Open);
    let denied = pollster::block_on(open(&limiter)).unwrap_err().decision();
    assert_eq!(denied.retry_after(), None);
}
