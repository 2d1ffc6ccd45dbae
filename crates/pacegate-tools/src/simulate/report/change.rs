//! The differences between two variants.

use std::collections::HashSet;

use serde::Serialize;

use super::{Variant, shown};
use crate::simulate::tally::{KeyText, PolicyTally};

/// The changes of a variant compared with the first one.
#[derive(Debug, Serialize)]
pub struct Change {
    pub from: String,
    pub to: String,
    /// Denied requests before and after.
    pub denied: [u64; 2],
    pub policies: Vec<PolicyChange>,
}

/// The changes of one policy, matched by name.
#[derive(Debug, Serialize)]
pub struct PolicyChange {
    pub name: String,
    /// `None` if the variant has no such policy.
    pub limits: [Option<String>; 2],
    pub denied: [u64; 2],
    pub touched: [u64; 2],
    /// Keys with more denials than before, the largest change first.
    pub worse: Vec<KeyChange>,
    /// Keys with fewer denials than before, the largest change first.
    pub better: Vec<KeyChange>,
}

#[derive(Debug, Serialize)]
pub struct KeyChange {
    pub key: String,
    pub requests: u64,
    pub denied: [u64; 2],
}

impl Change {
    pub(super) fn new(from: &Variant, to: &Variant, top: usize) -> Self {
        let mut names: Vec<String> = Vec::new();
        for policy in from.policies().iter().chain(to.policies()) {
            let name = policy.name.to_string();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let change = |name| PolicyChange::new(name, [from, to], top);
        Self {
            from: from.name.clone(),
            to: to.name.clone(),
            denied: [from.counts.denied, to.counts.denied],
            policies: names.into_iter().map(change).collect(),
        }
    }
}

impl PolicyChange {
    fn new(name: String, variants: [&Variant; 2], top: usize) -> Self {
        let places = variants.map(|variant| {
            variant.policies().iter().position(|policy| policy.name.as_str() == name)
        });
        let sides: [_; 2] = std::array::from_fn(|side| {
            let place = places[side]?;
            Some((&variants[side].policies()[place], &variants[side].tallies[place]))
        });
        let limits = sides.map(|side| {
            let limits = side?.0.limits.iter().map(ToString::to_string).collect::<Vec<_>>();
            Some(limits.join(", "))
        });
        let tallies = sides.map(|side| side.map(|(_, tally)| tally));
        let denied = tallies.map(|tally| tally.map_or(0, |tally| tally.counts.all_denied()));
        let touched = tallies.map(|tally| tally.map_or(0, |tally| tally.keys.counts().touched));
        let (worse, better) = keys(tallies, top);
        Self { name, limits, denied, touched, worse, better }
    }
}

/// Returns the keys with more and with fewer denials, the largest changes first.
fn keys(tallies: [Option<&PolicyTally>; 2], top: usize) -> (Vec<KeyChange>, Vec<KeyChange>) {
    let mut seen = HashSet::new();
    let (mut worse, mut better) = (Vec::new(), Vec::new());
    for (key, _) in tallies.iter().flatten().flat_map(|tally| tally.keys.iter()) {
        let both = tallies.map(|tally| tally.and_then(|tally| tally.keys.get(key)));
        let denied = both.map(|tally| tally.map_or(0, |tally| tally.counts.all_denied()));
        if denied[0] == denied[1] || !seen.insert(key) {
            continue;
        }
        let requests = both.iter().flatten().map(|tally| tally.counts.requests()).max();
        let change = (denied[0].abs_diff(denied[1]), key, requests.unwrap_or_default(), denied);
        if denied[1] > denied[0] { worse.push(change) } else { better.push(change) }
    }
    let told = |mut changes: Vec<(u64, &KeyText, u64, [u64; 2])>| {
        changes.sort_unstable_by(|(a, one, ..), (b, other, ..)| b.cmp(a).then(one.cmp(other)));
        let first = changes.into_iter().take(top);
        let told =
            first.map(|(_, key, requests, denied)| KeyChange { key: shown(key), requests, denied });
        told.collect()
    };
    (told(worse), told(better))
}
