//! Runtime support for the code that `#[rate_limit]` of `pacegate-macros` expands to. Do not call it directly: it may
//! change with every release of the macro.

mod limiters;
mod outcome;

use std::{any, collections::HashMap, sync::OnceLock};

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::{
    Algorithm, Charge, CheckError, Decision, Denied, Key, KeyBuf, KeyRef, Limit,
    policy::{FailureMode, PolicyName},
};

pub use limiters::{AsyncLimiter, Installed, Named, SyncLimiter, admit, decide};
pub use outcome::{FromDenied, Pass, Units, answer, deny, units};

/// `failure = "local"`.
pub const LOCAL: FailureMode =
    FailureMode::Local { numerator: 1, denominator: std::num::NonZeroU32::MIN };

/// The limits under which functions have been charged, for each policy. A reset needs them to find the counters. The
/// lock is held only for a lookup or an insertion.
static USED: RwLock<Option<HashMap<PolicyName, Vec<Limit>>>> = RwLock::new(None);

/// The maximum number of limits remembered for one policy. They differ in period or algorithm; limits that differ only
/// in amount or burst are remembered once.
const MAX_USED: usize = 64;

/// One use of the attribute: its limits, name and failure mode, which do not depend on a call.
#[derive(Debug)]
pub struct Site {
    limits: &'static [&'static str],
    name: Option<&'static str>,
    failure: Option<FailureMode>,
    known: OnceLock<Known>,
}

/// The parsed name and limits of a site, computed by its first call.
#[derive(Debug)]
struct Known {
    policy: PolicyName,
    limits: SmallVec<[Limit; 1]>,
}

/// The charges of one call: policy, limits, key and cost.
#[derive(Clone, Debug)]
pub struct CallCharges {
    policy: PolicyName,
    limits: SmallVec<[Limit; 1]>,
    failure: Option<FailureMode>,
    key: KeyBuf,
    cost: u64,
    /// The id of the permit; 0 if none of the limits is a concurrency limit.
    permit: u128,
}

impl Site {
    /// Creates a site. The macro has already checked that the limits and the name are valid.
    pub const fn new(
        limits: &'static [&'static str],
        name: Option<&'static str>,
        failure: Option<FailureMode>,
    ) -> Self {
        Self { limits, name, failure, known: OnceLock::new() }
    }

    /// Returns the charges for `key` under the limits of the attribute. `here` is an item inside the function, by
    /// which the policy is named if the attribute has no name.
    pub fn ask<T>(&self, here: &T, key: &(impl Key + ?Sized), cost: u64) -> CallCharges {
        self.ask_all(here, None, key, cost)
    }

    /// Returns the charges for `key` under a limit that was computed for this call.
    pub fn ask_limit<T>(
        &self,
        here: &T,
        limit: Limit,
        key: &(impl Key + ?Sized),
        cost: u64,
    ) -> CallCharges {
        self.ask_all(here, Some(limit), key, cost)
    }

    fn ask_all<T>(
        &self,
        here: &T,
        limit: Option<Limit>,
        key: &(impl Key + ?Sized),
        cost: u64,
    ) -> CallCharges {
        let known = self.known.get_or_init(|| self.learn(any::type_name_of_val(here)));
        limit.iter().for_each(|limit| remember(known.policy, limit));
        let limits =
            limit.map_or_else(|| known.limits.clone(), |limit| SmallVec::from_buf([limit]));
        let holds = limits.iter().any(|limit| limit.algorithm() == Algorithm::Concurrency);
        CallCharges {
            policy: known.policy,
            limits,
            failure: self.failure,
            key: key.with(|key| key.to_buf()),
            cost,
            permit: if holds { crate::limiter::new_permit_id() } else { 0 },
        }
    }

    /// Parses the limits, and names the policy by the attribute or by the path `here`.
    fn learn(&self, here: &str) -> Known {
        let limit = |text: &&str| {
            text.parse().unwrap_or_else(|error| unreachable!("the macro has validated it: {error}"))
        };
        let name = self.name.map_or_else(|| policy_name(here), str::to_owned);
        let policy = name.parse();
        let known = Known {
            policy: policy
                .unwrap_or_else(|error| unreachable!("the macro has validated it: {error}")),
            limits: self.limits.iter().map(limit).collect(),
        };
        known.limits.iter().for_each(|limit| remember(known.policy, limit));
        known
    }
}

/// Records that a policy is charged under a limit, so that a reset finds its counter.
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

impl CallCharges {
    fn to_charges(&self) -> SmallVec<[Charge<'_>; 1]> {
        let charge = |&limit: &Limit| {
            let charge = Charge::new(self.policy, self.key.as_ref(), limit).cost(self.cost);
            Charge { failure: self.failure, ..charge }.holding(self.permit)
        };
        self.limits.iter().map(charge).collect()
    }

    /// Converts the result of a check. A cost that can never be admitted becomes a permanent denial.
    fn conclude(&self, decision: Result<Decision, CheckError>) -> Result<(), Denied> {
        match decision {
            Ok(decision) => decision.into_result().map(drop),
            // A function can only report a denial. It is permanent, because waiting would not help.
            Err(_) => Err(self.refused()),
        }
    }

    /// Returns a permanent denial by the first limit that cannot admit the cost.
    fn refused(&self) -> Denied {
        let fits_not = |limit: &&Limit| self.cost > limit.capacity();
        let limit = self.limits.iter().find(fits_not).or(self.limits.first());
        Denied::for_good(self.policy, limit.copied().unwrap_or(Limit::per_second(0)))
    }
}

/// Converts the path of a function to the name of a policy: `shop::Orders::list` becomes `shop.Orders.list`.
///
/// If the name cannot represent the whole path, it starts with a hash of the path, which is the same in every process.
fn policy_name(path: &str) -> String {
    const MAX: usize = 64;
    // Remove the item inside the function, then the closure of an async function.
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
    // Keep the end, which is the most specific part.
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
    fn paths_that_do_not_fit_a_name_get_a_hash() {
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
