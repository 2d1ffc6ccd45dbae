//! Names of counters.

use pacegate::{Denied, Limiter, Policy, PolicySet};
use pacegate_macros::rate_limit;

use crate::{admitted, limiter};

struct Orders;
struct Refunds;

trait Service {
    fn by_trait(&self, limiter: &Limiter) -> Result<(), Denied>;
}

impl Orders {
    #[rate_limit("1/minute", limiter = limiter)]
    fn list(&self, limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("0/minute", limiter = limiter)]
    async fn later(&self, limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }
}

impl Refunds {
    #[rate_limit("1/minute", limiter = limiter)]
    fn list(&self, limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }
}

impl Service for Orders {
    #[rate_limit("0/minute", limiter = limiter)]
    fn by_trait(&self, limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }
}

fn name(denied: Result<(), Denied>) -> &'static str {
    denied.unwrap_err().decision().policy().unwrap().as_str()
}

#[test]
fn methods_of_one_name_are_apart() {
    let (limiter, _) = limiter();
    assert_eq!(admitted(3, || Orders.list(&limiter)), 1);
    assert_eq!(admitted(3, || Refunds.list(&limiter)), 1);
    assert_eq!(name(Orders.list(&limiter)), "it.names.Orders.list");
    assert_eq!(name(pollster::block_on(Orders.later(&limiter))), "it.names.Orders.later");
    let by_trait = name(Orders.by_trait(&limiter));
    assert_eq!(by_trait, "it.names.Orders.as.it.names.Service.by_trait");
}

#[test]
fn functions_in_any_letters_are_apart() {
    #[rate_limit("1/minute", limiter = limiter)]
    fn 送信(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", limiter = limiter)]
    fn 受信(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(3, || 送信(&limiter)), 1);
    assert_eq!(admitted(3, || 受信(&limiter)), 1);
    let name = name(送信(&limiter));
    assert!(name.ends_with(".it.names.functions_in_any_letters_are_apart"), "{name}");
}

#[test]
fn one_name_is_one_budget() {
    #[rate_limit("3/minute", name = "reports", limiter = limiter)]
    fn weekly(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("3/minute", name = "reports", limiter = limiter)]
    fn monthly(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(2, || weekly(&limiter)), 2);
    assert_eq!(admitted(3, || monthly(&limiter)), 1);
    assert_eq!(name(weekly(&limiter)), "reports");
}

#[test]
fn a_generic_function_has_one_budget() {
    #[rate_limit("2/minute", limiter = limiter)]
    fn generic<T>(limiter: &Limiter, _of: T) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert!(generic(&limiter, 1).is_ok());
    assert!(generic(&limiter, "a").is_ok());
    assert!(generic(&limiter, 'c').is_err());
}

#[test]
fn calls_are_counted_under_their_policy_if_there_is_one() {
    #[rate_limit("1/minute", name = "known", limiter = limiter)]
    fn known(limiter: &Limiter) -> Result<(), Denied> {
        Ok(())
    }

    let policy = Policy::new("known", ["1/minute"]);
    let policies = PolicySet::new([policy]).unwrap();
    let limiter = limiter().0.with_policies(policies);
    assert_eq!(admitted(3, || known(&limiter)), 1);
    let stats = limiter.stats();
    assert_eq!((stats.policies[0].allowed, stats.policies[0].denied), (1, 2));
}

#[test]
fn two_with_names_hold_both() {
    #[rate_limit("2/minute", name = "outer", limiter = limiter)]
    #[rate_limit("5/minute", name = "inner", key = user, limiter = limiter)]
    fn twice(limiter: &Limiter, user: &str) -> Result<(), Denied> {
        Ok(())
    }

    let (limiter, _) = limiter();
    assert_eq!(admitted(4, || twice(&limiter, "alice")), 2);
    assert_eq!(name(twice(&limiter, "bob")), "outer");
}
