//! What `#[rate_limit]` of `pacegate-macros` becomes. Not to be called by hand: it changes as the macro does.

mod gate;
mod outcome;

use std::{any, collections::HashMap, sync::OnceLock};

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::{
    Algorithm, Charge, CheckError, Decision, Denied, Key, KeyBuf, KeyRef, Limit,
    policy::{FailureMode, PolicyName},
};

pub use gate::{Gate, Installed, Named, WaitingGate, admit, decide};
pub use outcome::{FromDenied, Pass, Units, answer, deny, units};

/// `failure = "local"`.
pub const LOCAL: FailureMode =
    FailureMode::Local { numerator: 1, denominator: std::num::NonZeroU32::MIN };

/// The limits that functions have been charged by, for each policy: what a reset has to know. Held for a lookup.
static USED: RwLock<Option<HashMap<PolicyName, Vec<Limit>>>> = RwLock::new(None);

/// The most limits of one policy that are remembered. They differ in period or algorithm, since others count in the
/// same place.
const MAX_USED: usize = 64;

/// One attribute: what is known of it before any call.
#[derive(Debug)]
pub struct Site {
    limits: &'static [&'static str],
    name: Option<&'static str>,
    failure: Option<FailureMode>,
    known: OnceLock<Known>,
}

#[derive(Debug)]
struct Known {
    policy: PolicyName,
    limits: SmallVec<[Limit; 1]>,
}

/// What one call is charged.
#[derive(Clone, Debug)]
pub struct Asked {
    policy: PolicyName,
    limits: SmallVec<[Limit; 1]>,
    failure: Option<FailureMode>,
    key: KeyBuf,
    cost: u64,
    /// 0 unless one of the limits is of concurrency.
    permit: u128,
}

impl Site {
    /// The macro has made sure that limits and name are valid.
    pub const fn new(
        limits: &'static [&'static str],
        name: Option<&'static str>,
        failure: Option<FailureMode>,
    ) -> Self {
        Self { limits, name, failure, known: OnceLock::new() }
    }

    /// What is charged for `key`, under the limits of the attribute. `here` is an item inside the function.
    pub fn ask<T>(&self, here: &T, key: &(impl Key + ?Sized), cost: u64) -> Asked {
        self.ask_all(here, None, key, cost)
    }

    /// What is charged for `key`, under a limit that was found for this call.
    pub fn ask_limit<T>(
        &self,
        here: &T,
        limit: Limit,
        key: &(impl Key + ?Sized),
        cost: u64,
    ) -> Asked {
        self.ask_all(here, Some(limit), key, cost)
    }

    fn ask_all<T>(
        &self,
        here: &T,
        limit: Option<Limit>,
        key: &(impl Key + ?Sized),
        cost: u64,
    ) -> Asked {
        let known = self.known.get_or_init(|| self.learn(any::type_name_of_val(here)));
        limit.iter().for_each(|limit| remember(known.policy, limit));
        let limits =
            limit.map_or_else(|| known.limits.clone(), |limit| SmallVec::from_buf([limit]));
        let holds = limits.iter().any(|limit| limit.algorithm() == Algorithm::Concurrency);
        Asked {
            policy: known.policy,
            limits,
            failure: self.failure,
            key: key.with(|key| key.to_buf()),
            cost,
            permit: if holds { crate::limiter::new_permit_id() } else { 0 },
        }
    }

    fn learn(&self, here: &str) -> Known {
        let limit = |text: &&str| {
            text.parse().unwrap_or_else(|error| unreachable!("the macro took it: {error}"))
        };
        let name = self.name.map_or_else(|| policy_name(here), str::to_owned);
        let policy = name.parse();
        let known = Known {
            policy: policy.unwrap_or_else(|error| unreachable!("the macro took it: {error}")),
            limits: self.limits.iter().map(limit).collect(),
        };
        known.limits.iter().for_each(|limit| remember(known.policy, limit));
        known
    }
}

fn remember(policy: PolicyName, limit: &Limit) {
    let is_known = |limits: &Vec<Limit>| limits.iter().any(|known| known.counts_like(limit));
    let has = |used: &HashMap<_, _>| used.get(&policy).is_some_and(is_known);
    if USED.read().as_ref().is_some_and(has) {
        return;
    }
    let mut used = USED.write();
    let limits = used.get_or_insert_default().entry(policy).or_default();
    if !is_known(limits) && limits.len() < MAX_USED {
        limits.push(*limit);
    }
}

/// Returns a charge to a key for each limit that functions of this policy have been charged by.
pub(crate) fn used<'a>(policy: &str, key: KeyRef<'a>) -> Vec<Charge<'a>> {
    let Ok(policy) = policy.parse() else { return Vec::new() };
    let used = USED.read();
    let limits = used.as_ref().and_then(|used| used.get(&policy));
    limits.into_iter().flatten().map(|&limit| Charge::new(policy, key, limit)).collect()
}

impl Asked {
    fn with_charges<R>(&self, then: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        then(&self.charges())
    }

    fn charges(&self) -> SmallVec<[Charge<'_>; 1]> {
        let charge = |&limit: &Limit| {
            let charge = Charge::new(self.policy, self.key.as_ref(), limit).cost(self.cost);
            Charge { failure: self.failure, ..charge }.holding(self.permit)
        };
        self.limits.iter().map(charge).collect()
    }

    fn conclude(&self, decision: Result<Decision, CheckError>) -> Result<(), Denied> {
        match decision {
            Ok(decision) => decision.into_result().map(drop),
            // The function has one way to say that it did not run, and waiting would not help.
            Err(_) => Err(self.refused()),
        }
    }

    fn refused(&self) -> Denied {
        let fits_not = |limit: &&Limit| self.cost > limit.capacity();
        let limit = self.limits.iter().find(fits_not).or(self.limits.first());
        Denied::for_good(self.policy, limit.copied().unwrap_or(Limit::per_second(0)))
    }
}

/// The path of a function as the name of a policy: `shop::Orders::list` is `shop.Orders.list`.
///
/// If that leaves something out, a hash tells it apart, which is the same in every process.
fn policy_name(path: &str) -> String {
    const MAX: usize = 64;
    // The item inside the function, by which it was found, and the future of one that is async.
    let path = path.rsplit_once("::").map_or(path, |(function, _)| function);
    let path = path.trim_end_matches("::{{closure}}");
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let words = path.split(|c| !fits(c)).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join(".");
    if name.len() <= MAX && path.chars().all(|c| fits(c) || " :<>".contains(c)) {
        return name;
    }
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = format!("{hash:016x}.");
    // Its end says most.
    format!("{hash}{}", &name[name.len().saturating_sub(MAX - hash.len())..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths() {
        for (path, name) in [
            ("shop::list::here", "shop.list"),
            ("shop::list::{{closure}}::here", "shop.list"),
            ("<shop::Orders as shop::Service>::list::here", "shop.Orders.as.shop.Service.list"),
            ("shop::Orders<T>::list::{{closure}}::here", "shop.Orders.T.list"),
        ] {
            assert_eq!(policy_name(path), name);
            assert!(name.parse::<PolicyName>().is_ok());
        }
    }

    #[test]
    fn what_a_name_cannot_hold_is_told_apart() {
        let (send, receive) = (policy_name("shop::送信::here"), policy_name("shop::受信::here"));
        assert_eq!(send, "8b0492393753196d.shop");
        assert_ne!(send, receive);
        for (one, other) in [
            ("shop::é::here", "shop::è::here"),
            ("送信::here", "受信::here"),
            ("shop::closure::here", "shop::here"),
            ("shop::closure::here", "shop::{{closure}}::here"),
            ("shop::list::{{closure}}::next::here", "shop::list::next::here"),
            (
                "<&shop::Orders as shop::Service>::list::here",
                "<shop::Orders as shop::Service>::list::here",
            ),
            ("shop::Pair<A, B>::list::here", "shop::Pair<A<B>>::list::here"),
        ] {
            let names = [policy_name(one), policy_name(other)];
            assert_ne!(names[0], names[1], "{one}, {other}");
            assert!(names.iter().all(|name| name.parse::<PolicyName>().is_ok()), "{names:?}");
        }
        assert_eq!(policy_name("shop::送信::{{closure}}::here"), send, "async or not");
        assert_eq!(policy_name("shop::closure::here"), "shop.closure");
    }

    #[test]
    fn long_names_stay_apart() {
        let long = |first: &str| policy_name(&format!("{first}::{}::here", "m".repeat(70)));
        assert_eq!(long("a").len(), 64);
        assert!(long("a").parse::<PolicyName>().is_ok());
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a")[17..], "m".repeat(47));
        let fits = "m".repeat(64);
        assert_eq!(policy_name(&format!("{fits}::here")), fits);
    }
}
