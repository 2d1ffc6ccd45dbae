//! Keys that are given as text, with the name of their policy: to block them, or to look them up.

use std::time::Duration;

use pacegate::{KeyBuf, Policy, PolicyName, Timestamp};
use pacegate_redis::Block;

use crate::{
    active_config::Revision,
    config::Scope,
    live::{MAX_SHOWN_CHARS, key_of, text_of},
    service::Access,
};

/// A policy and one of its keys, given as text.
#[derive(Debug)]
pub(crate) struct NamedKey<'r> {
    pub(crate) policy: PolicyName,
    pub(crate) domain: &'r str,
    pub(crate) key: KeyBuf,
}

/// The reason why a policy or a key was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("unknown policy")]
    UnknownPolicy,
    #[error("unknown policy in the domains that the API key covers")]
    HiddenPolicy,
    #[error("the key is too long")]
    TooLong,
    /// The dashboard shows no more of it.
    #[error("the key exceeds {MAX_SHOWN_CHARS} characters")]
    NotShown,
    #[error("invalid `key`: this policy has a single counter, so leave it empty")]
    SingleCounter,
    #[error("invalid `key`: expected the values of `{0}`, separated by `, `")]
    OtherParts(String),
}

/// A duration or an end of a block that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockTimeError {
    #[error("expected `seconds` or `until`, not both")]
    Both,
    #[error("invalid `seconds`: expected 1 to {} (30 days)", MAX_TIME.as_secs())]
    Seconds,
    #[error("invalid `until`: expected a Unix time in seconds, at most 30 days from now")]
    Until,
}

const DEFAULT_SECONDS: u64 = 3_600;
const MIN_TIME: Duration = Duration::from_secs(1);
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Returns the duration of a block from `now`, which has a length in seconds or an end. Default: an hour.
pub(crate) fn block_time(
    seconds: Option<u64>,
    until: Option<u64>,
    now: Timestamp,
) -> Result<Duration, BlockTimeError> {
    match (seconds, until) {
        (Some(_), Some(_)) => Err(BlockTimeError::Both),
        (seconds, None) => {
            let time = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
            let is_valid = (MIN_TIME..=MAX_TIME).contains(&time);
            is_valid.then_some(time).ok_or(BlockTimeError::Seconds)
        }
        (None, Some(until)) => {
            let time = Duration::from_micros(Timestamp::from_secs(until).micros_since(now));
            let is_valid = !time.is_zero() && time <= MAX_TIME;
            is_valid.then_some(time).ok_or(BlockTimeError::Until)
        }
    }
}

/// Returns true if `GET /v1/live` shows a block with this policy and key.
///
/// Compares texts instead of parsing the key, because the policy may have changed or disappeared since the block.
pub(crate) fn is_named(block: &Block, policy: &str, key: &str) -> bool {
    block.policy.as_str() == policy && text_of(block.key.as_ref()) == key
}

/// Finds a policy by its name. Returns the policy, or `None` for inline limits, and its domain. Does not find policies
/// of domains that the API key does not cover.
///
/// Does not parse the name: parsed policy names stay in memory.
pub(crate) fn find<'r>(
    policy: &str,
    revision: &'r Revision,
    access: Access<'_>,
) -> Option<(Option<&'r Policy>, &'r str)> {
    let mut policies = revision.engine.policies().policies().iter();
    let own = policies.find(|other| other.name.as_str() == policy);
    let found = match own {
        None if policy != PolicyName::INLINE.as_str() => None,
        own => Some((own, own.map_or("", |policy| &policy.domain))),
    };
    found.filter(|(_, domain)| access.allows(Scope::Check, domain))
}

/// Finds a policy by its name. Returns its parsed name and its domain.
pub(crate) fn find_name<'r>(
    policy: &str,
    revision: &'r Revision,
    access: Access<'_>,
) -> Result<(PolicyName, &'r str), NameError> {
    let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
    Ok((found.map_or(PolicyName::INLINE, |policy| policy.name), domain))
}

fn no_policy(access: Access<'_>) -> NameError {
    match access.allows_everywhere(Scope::Check) {
        true => NameError::UnknownPolicy,
        false => NameError::HiddenPolicy,
    }
}

impl<'r> NamedKey<'r> {
    pub(crate) fn new(
        policy: &str,
        key: &str,
        revision: &'r Revision,
        access: Access<'_>,
    ) -> Result<Self, NameError> {
        let settings = &revision.settings;
        if key.len() > settings.bounds.key_bytes.saturating_mul(settings.bounds.attributes) {
            return Err(NameError::TooLong);
        }
        let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
        let key = key_of(found, key).ok_or_else(|| {
            let per = found.map(|policy| policy.per.join(", ")).unwrap_or_default();
            if per.is_empty() { NameError::SingleCounter } else { NameError::OtherParts(per) }
        })?;
        let policy = found.map_or(PolicyName::INLINE, |policy| policy.name);
        Ok(Self { policy, domain, key })
    }

    /// Returns an error if the text of a key is too long to be blocked.
    pub(crate) fn check_shown(key: &str) -> Result<(), NameError> {
        match key.chars().count() > MAX_SHOWN_CHARS {
            true => Err(NameError::NotShown),
            false => Ok(()),
        }
    }
}
