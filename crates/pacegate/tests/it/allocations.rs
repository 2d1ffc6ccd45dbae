//! Heap allocations of a check. They are counted for the thread of the test only.

use allocation_counter::measure;
use pacegate::{Limiter, Policy, PolicySet, Request};

use crate::limiter;

/// Returns the number of allocations of a thousand calls, after a thousand others have warmed it up.
fn allocations<T>(call: impl Fn() -> T) -> u64 {
    let thousand = || (0..1_000).for_each(|_| drop(call()));
    thousand();
    measure(thousand).count_total
}

#[test]
fn a_check_of_a_known_key_allocates_nothing() {
    for text in ["1000000/hour", "1/hour", "5/second burst 9", "7/hour sliding-window"] {
        let (limiter, _) = limiter(text);
        let system = Limiter::memory(crate::limit(text));
        for limiter in [limiter, system] {
            assert_eq!(allocations(|| limiter.check("alice")), 0, "{text}");
            assert_eq!(allocations(|| limiter.check(42_u64)), 0, "{text}: a number");
            assert_eq!(allocations(|| limiter.check(("eu", 42))), 0, "{text}: a tuple");
            assert_eq!(allocations(|| limiter.peek("alice")), 0, "{text}: a peek");
        }
    }
}

#[test]
fn a_check_of_two_limits_or_of_a_request_allocates_nothing() {
    let both = Limiter::builder().limit("9/second burst 9").limit("1000000/hour").build().unwrap();
    assert_eq!(allocations(|| both.check("alice")), 0);

    let login = Policy::new("login", ["5/minute"]).per(["ip"]);
    let policies = PolicySet::new([login, Policy::new("all", ["1000000/hour"])]).unwrap();
    let limiter = Limiter::builder().policies(policies).build().unwrap();
    let request = Request::new().with("ip", "203.0.113.7");
    assert_eq!(allocations(|| limiter.check_request(&request)), 0);
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| String::from("alice")), 1_000);
}
