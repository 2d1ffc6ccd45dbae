//! Searches for the limit that meets a target, by replaying the traffic.

use std::{
    collections::{BTreeMap, HashMap},
    str::FromStr,
};

use foldhash::fast::RandomState;
use pacegate::{KeyBuf, KeyRef, Limit, LimitError, ParseLimitError, Policy, PolicySet};

use super::{SimulateError, Study, replay::Variant, report::percent, tally::window::Window};

/// The target of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Deny at most this many of a million requests.
    Denied(u64),
    /// Deny requests of at most this many of a million clients.
    Touched(u64),
    /// Admit no client more than this within any one period.
    Above(Limit),
}

/// The suggested limit: the smallest one for `Denied` and `Touched`, the largest one for `Above`.
#[derive(Clone, Debug)]
pub struct Suggestion {
    pub limit: Limit,
    /// The result of replaying the traffic with this limit.
    pub outcome: Outcome,
    /// The nearest limit that misses the target and its result, if there is one.
    pub next: Option<(Limit, Outcome)>,
    /// Number of passes over the traffic and number of limits tried.
    pub passes: u64,
    pub tried: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub enum Found {
    /// The limit that meets the target.
    Limit(Box<Suggestion>),
    /// Every limit meets the target: the largest one tried denies nothing, so larger ones do not either.
    Any,
    /// No limit meets the target.
    Nothing,
}

/// The result of replaying the traffic with one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Outcome {
    pub requests: u64,
    pub denied: u64,
    pub clients: u64,
    pub touched: u64,
    /// The most that any client was admitted within one period of the target; capped at the target plus one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest: Option<u64>,
}

/// Finds the most that a key is admitted within any one period of the target.
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// Index of the checked policy.
    policy: usize,
    amount: u64,
    period: u64,
    keys: HashMap<KeyBuf, Window, RandomState>,
    /// Number of keys from which on inactive keys are removed.
    room: usize,
    highest: u64,
}

const MILLION: u64 = 1_000_000;
/// Number of limits tried per pass.
const AT_ONCE: u64 = 8;
/// Maximum amount of a target, because [`Ceiling`] stores that many times per key.
const MAX_CEILING: u64 = 10_000;

/// A text that is not a target.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum GoalError {
    #[error(
        "invalid target `{0}`: expected \"deny at most 0.1%\", \"touch at most 1% of clients\" or \
         \"no client above 20/second\""
    )]
    Invalid(String),
    #[error("invalid target `no client above {limit}`: {error}")]
    Limit { limit: String, error: ParseLimitError },
    #[error("invalid target `no client above {0}`: expected an amount from 1 to {MAX_CEILING}")]
    Amount(Limit),
}

impl FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
        let wrong = || GoalError::Invalid(text.to_owned());
        let text = text.replace(" %", "%");
        let words: Vec<&str> = text.split_whitespace().collect();
        match *words {
            ["deny", "at", "most", share] | ["deny", "at", "most", share, "of", "requests"] => {
                millionths(share).map(Self::Denied).ok_or_else(wrong)
            }
            ["deny" | "touch", "at", "most", share, "of", "clients"] => {
                millionths(share).map(Self::Touched).ok_or_else(wrong)
            }
            ["no", "client", "above", limit] => {
                let parsed: Result<Limit, ParseLimitError> = limit.parse();
                let limit =
                    parsed.map_err(|error| GoalError::Limit { limit: limit.to_owned(), error })?;
                match limit.amount() {
                    1..=MAX_CEILING => Ok(Self::Above(limit)),
                    _ => Err(GoalError::Amount(limit)),
                }
            }
            _ => Err(wrong()),
        }
    }
}

/// Parses a percentage with up to four decimals into millionths.
fn millionths(text: &str) -> Option<u64> {
    let number = text.strip_suffix('%')?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let padded = format!("{decimals:0<4}");
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if padded.len() != 4 || !digits(&padded) || !digits(whole) {
        return None;
    }
    let share = whole.parse::<u64>().ok()?.checked_mul(10_000)?;
    share.checked_add(padded.parse().ok()?).filter(|share| *share <= MILLION)
}

impl Goal {
    fn is_met(self, outcome: &Outcome) -> bool {
        let within = |part: u64, whole: u64, most: u64| {
            u128::from(part) * u128::from(MILLION) <= u128::from(whole) * u128::from(most)
        };
        match self {
            Self::Denied(most) => within(outcome.denied, outcome.requests, most),
            Self::Touched(most) => within(outcome.touched, outcome.clients, most),
            Self::Above(limit) => outcome.highest.unwrap_or_default() <= limit.amount(),
        }
    }

    /// Returns true if larger limits meet the target, false if smaller ones do.
    fn rises(self) -> bool {
        !matches!(self, Self::Above(_))
    }

    /// Describes the result of a limit in terms of the target.
    pub fn describe(self, outcome: &Outcome) -> String {
        let Outcome { requests, denied, clients, touched, highest } = outcome;
        match self {
            Self::Denied(_) => format!("denies {} of requests", percent(*denied, *requests)),
            Self::Touched(_) => {
                format!("denies requests of {} of clients", percent(*touched, *clients))
            }
            Self::Above(limit) => match highest.unwrap_or_default() {
                most if most > limit.amount() => {
                    format!("admits more than {limit} for some client")
                }
                most => format!("admits at most {most} per client in any period"),
            },
        }
    }
}

/// A search for the limit of one policy; all other policies stay unchanged.
#[derive(Debug)]
pub struct Search<'a> {
    /// The traffic.
    pub study: &'a Study,
    /// All policies of the replay.
    pub policies: &'a [Policy],
    /// Index of the policy.
    pub place: usize,
    /// The form of the limit; only the amount changes.
    pub like: Limit,
    /// The target to meet.
    pub target: Goal,
}

impl Search<'_> {
    /// Narrows down the amount, several per pass, until one that meets the target is next to one that does
    /// not. Both were replayed, so the result holds even if the outcome is not monotonic in the amount.
    pub fn run(&self, watch: &mut dyn FnMut(u64)) -> Result<Found, SimulateError> {
        let mut known = BTreeMap::new();
        let mut amounts: Vec<u64> = (0..12).map(|power| 4_u64.pow(power)).collect();
        let mut passes = 0;
        while !amounts.is_empty() {
            passes += 1;
            let before = known.len();
            self.attempt(&amounts, &mut known, watch)?;
            // No limit can have any of these amounts.
            if known.len() == before {
                break;
            }
            let (low, high) = self.bracket(&known);
            amounts = match high {
                Some(high) => between(low.unwrap_or(0), high),
                None if self.denies_nothing(&known) => Vec::new(),
                None => self.beyond(low.unwrap_or(0)),
            };
        }
        Ok(self.conclude(&known, passes))
    }

    /// Returns true if the largest amount denies nothing, so that larger ones make no difference.
    fn denies_nothing(&self, known: &BTreeMap<u64, Outcome>) -> bool {
        known.last_key_value().is_some_and(|(_, outcome)| outcome.denied == 0)
    }

    /// Returns amounts to try above `low`, up to the largest that a limit of this form can have.
    fn beyond(&self, low: u64) -> Vec<u64> {
        let (mut most, mut too_many) = (low, Limit::MAX_AMOUNT + 1);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            match self.limit(middle) {
                Ok(_) => most = middle,
                Err(_) => too_many = middle,
            }
        }
        let powers = (1..=AT_ONCE as u32).map(|power| low.saturating_mul(4_u64.pow(power)));
        let mut amounts: Vec<u64> = powers.map(|amount| amount.min(most)).collect();
        amounts.dedup();
        amounts.retain(|amount| *amount > low);
        amounts
    }

    /// Returns the largest amount that is too small and the smallest that is not.
    fn bracket(&self, known: &BTreeMap<u64, Outcome>) -> (Option<u64>, Option<u64>) {
        let enough = |outcome: &Outcome| self.target.is_met(outcome) == self.target.rises();
        let high = known.iter().find(|(_, outcome)| enough(outcome)).map(|(amount, _)| *amount);
        let mut below = known.range(..high.unwrap_or(u64::MAX));
        (below.next_back().map(|(amount, _)| *amount), high)
    }

    /// Replays the traffic once with all of these amounts that are valid.
    fn attempt(
        &self,
        amounts: &[u64],
        known: &mut BTreeMap<u64, Outcome>,
        watch: &mut dyn FnMut(u64),
    ) -> Result<(), SimulateError> {
        let (mut variants, mut tried) = (Vec::new(), Vec::new());
        for &amount in amounts {
            let Ok(limit) = self.limit(amount) else { continue };
            let mut policies = self.policies.to_vec();
            if let Some(first) = policies[self.place].limits.first_mut() {
                *first = limit;
            }
            let mut variant = self.study.variant(limit.to_string(), PolicySet::new(policies)?)?;
            variant.ceiling = match self.target {
                Goal::Above(ceiling) => Some(Ceiling::new(&ceiling, self.place)),
                _ => None,
            };
            variants.push(variant);
            tried.push(amount);
        }
        if !variants.is_empty() {
            self.study.replay(&mut variants, watch)?;
        }
        let outcomes = variants.iter().map(|variant| self.outcome(variant));
        known.extend(tried.into_iter().zip(outcomes));
        Ok(())
    }

    fn limit(&self, amount: u64) -> Result<Limit, LimitError> {
        let Some(burst) = self.like.burst() else { return self.like.with_amount(amount) };
        // The ratio of burst to amount stays the same.
        let scaled = u128::from(burst) * u128::from(amount);
        let burst = scaled.div_ceil(u128::from(self.like.amount().max(1))).max(1);
        let limit = Limit::new(amount, self.like.period())?;
        limit.with_burst(u64::try_from(burst).unwrap_or(u64::MAX))
    }

    fn outcome(&self, variant: &Variant) -> Outcome {
        let tally = &variant.tallies[self.place];
        let keys = tally.keys.counts();
        Outcome {
            requests: tally.counts.requests(),
            denied: tally.counts.all_denied(),
            clients: keys.seen,
            touched: keys.touched,
            highest: variant.ceiling.as_ref().map(|ceiling| ceiling.highest),
        }
    }

    fn conclude(&self, known: &BTreeMap<u64, Outcome>, passes: u64) -> Found {
        let (low, high) = self.bracket(known);
        if !self.target.rises() && high.is_none() && self.denies_nothing(known) {
            return Found::Any;
        }
        let (found, next) = if self.target.rises() { (high, low) } else { (low, high) };
        let tell = |amount: u64| Some((self.limit(amount).ok()?, *known.get(&amount)?));
        let Some((limit, outcome)) = found.and_then(tell) else { return Found::Nothing };
        let (next, tried) = (next.and_then(tell), known.len() as u64);
        Found::Limit(Box::new(Suggestion { limit, outcome, next, passes, tried }))
    }
}

/// Returns amounts to try between two known ones.
fn between(low: u64, high: u64) -> Vec<u64> {
    let room = high.saturating_sub(low).saturating_sub(1);
    let count = room.min(AT_ONCE);
    (1..=count).map(|part| low + part * (room + 1) / (count + 1)).collect()
}

impl Ceiling {
    fn new(limit: &Limit, policy: usize) -> Self {
        let period = u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX);
        Self {
            policy,
            amount: limit.amount(),
            period,
            keys: HashMap::default(),
            room: 100_000,
            highest: 0,
        }
    }

    /// Records a request that a policy admitted.
    pub fn admitted(&mut self, policy: usize, key: KeyRef<'_>, at: u64) {
        if policy != self.policy || self.highest > self.amount {
            return;
        }
        let key = key.to_buf();
        if self.keys.len() >= self.room && !self.keys.contains_key(&key) {
            let period = self.period;
            self.keys.retain(|_, window| window.last().is_some_and(|last| at - last < period));
            self.room = self.room.max(2 * self.keys.len());
        }
        let window = self.keys.entry(key).or_insert_with(|| Window::new(self.period));
        self.highest = self.highest.max(window.add(at, true).admitted.into());
    }
}
