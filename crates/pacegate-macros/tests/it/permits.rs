//! Limits of concurrency: a place is held while the call runs.

use std::{future::poll_fn, panic::AssertUnwindSafe, pin::pin, task::Poll};

use pacegate::{Denied, Limiter, SharedLimiter};
use pacegate_macros::rate_limit;

use crate::limiter;

#[rate_limit("2/hour concurrency", limiter = limiter)]
fn nested(limiter: &Limiter, depth: u32) -> Result<u32, Denied> {
    if depth == 0 { Ok(0) } else { Ok(nested(limiter, depth - 1)? + 1) }
}

#[rate_limit("1/hour concurrency", "9/hour", limiter = limiter)]
async fn held(limiter: &SharedLimiter, until: impl Future<Output = ()>) -> Result<(), Denied> {
    until.await;
    Ok(())
}

#[test]
fn a_place_is_held_while_the_call_runs() {
    let (limiter, _) = limiter();
    assert_eq!(nested(&limiter, 1), Ok(1));
    assert!(nested(&limiter, 2).is_err());
    assert_eq!(nested(&limiter, 1), Ok(1), "all places are free again");
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        #[rate_limit("2/hour concurrency", name = "it.permits.nested", limiter = limiter)]
        fn panics(limiter: &Limiter) -> Result<(), Denied> {
            panic!("on purpose")
        }
        panics(&limiter)
    }));
    assert!(panicked.is_err());
    assert_eq!(nested(&limiter, 1), Ok(1), "also after a panic");
}

#[test]
fn a_future_holds_it_until_it_ends_or_is_dropped() {
    let limiter = SharedLimiter::from(limiter().0);
    pollster::block_on(async {
        {
            let mut first = pin!(held(&limiter, std::future::pending()));
            poll_fn(|context| {
                assert!(first.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            let denied = held(&limiter, std::future::ready(())).await.unwrap_err();
            assert_eq!(denied.decision().limit(), Some("1/hour concurrency".parse().unwrap()));
        }
        for _ in 0..8 {
            held(&limiter, std::future::ready(())).await.unwrap();
        }
        let denied = held(&limiter, std::future::ready(())).await.unwrap_err();
        assert_eq!(denied.decision().limit(), Some("9/hour".parse().unwrap()));
    });
}
