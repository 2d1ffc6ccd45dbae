//! `/v1/block`: keys that an operator denies.

use std::time::Duration;

use axum::extract::Request;
use pacegate::{KeyBuf, Policy, PolicyName, StoreError, Timestamp};
use pacegate_redis::Block;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Context, HttpResult, ProblemDetails,
    bodies::Done,
    read_request,
    request::{parse, parse_query},
    response::json,
};
use crate::{
    active_config::Revision,
    blocks::BlockError,
    config::Scope,
    live::{MAX_SHOWN_CHARS, key_of, text_of},
    service::Access,
};

/// A key to block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockRequest {
    /// Policy name; `inline` for inline limits.
    policy: String,
    /// Key as `GET /v1/live` shows it: the values of the policy's `per` attributes, separated by `, `.
    #[schemars(length(max = MAX_SHOWN_CHARS))]
    key: String,
    /// Duration in seconds, from 1 to 30 days. Default: 3600.
    #[schemars(range(min = 1, max = 2_592_000))]
    seconds: Option<u64>,
    /// End as a Unix time in seconds, at most 30 days from now. Not together with `seconds`.
    until: Option<u64>,
}

/// A blocked key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Block")]
pub(super) struct BlockResponse {
    #[schemars(with = "String")]
    pub(super) policy: PolicyName,
    /// Untrusted input: render it as text only.
    pub(super) key: String,
    /// Unix time in seconds.
    pub(super) until: u64,
}

/// A policy and one of its keys, given as text.
#[derive(Debug)]
pub(super) struct NamedKey<'r> {
    pub(super) policy: PolicyName,
    pub(super) domain: &'r str,
    pub(super) key: KeyBuf,
}

const DEFAULT_SECONDS: u64 = 3_600;
const MIN_TIME: Duration = Duration::from_secs(1);
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3_600);

/// `POST /v1/block`: blocks a key.
pub(super) async fn block(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let revision = shared.active.revision();
    // Checked first: without an API key, errors must not reveal the names of policies.
    let access = revision.access(&head.headers)?;
    let body: BlockRequest = parse(&body)?;
    let blocks = revision.engine.blocks();
    let time = body.time(blocks.now())?;
    let named = NamedKey::new(&body.policy, &body.key, &revision, access)?;
    let access = revision.access_to(&head.headers, Scope::Admin, named.domain)?;
    if body.key.chars().count() > MAX_SHOWN_CHARS {
        // The dashboard shows no more of it.
        let detail = format!("the key exceeds {MAX_SHOWN_CHARS} characters");
        return Err(ProblemDetails::bounds(detail));
    }
    let until = blocks.add(named.policy, named.key.clone(), time).await;
    let until = until.map_err(|error| match error {
        BlockError::TooMany => ProblemDetails::too_many_blocks(error.to_string()),
        BlockError::Store(error) => unchanged(error),
    })?;
    shared.active.audit().keys("block", &access, &[(named.policy, named.key.as_ref())]);
    json(&BlockResponse::new(named.policy, &named.key, until))
}

/// `DELETE /v1/block`: removes the blocks that `GET /v1/live` shows with this policy and key.
///
/// Compares texts instead of parsing the key, because the policy may have changed or disappeared since the block.
pub(super) async fn unblock(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    let access = revision.access(request.headers())?;
    let (policy, key) = name_in_query(&request)?
        .ok_or_else(|| ProblemDetails::request("the parameters `policy` and `key` are required"))?;
    let access = match find(&policy, &revision, access) {
        Some((_, domain)) => revision.access_to(request.headers(), Scope::Admin, domain)?,
        None => revision.access_everywhere(request.headers(), Scope::Admin)?,
    };
    let is_meant =
        |block: &Block| block.policy.as_str() == policy && text_of(block.key.as_ref()) == key;
    let lifted = revision.engine.blocks().lift(is_meant).await.map_err(unchanged)?;
    if lifted.is_empty() {
        // Reports a policy or a key that cannot exist.
        NamedKey::new(&policy, &key, &revision, access)?;
    } else {
        let keys: Vec<_> = lifted.iter().map(|block| (block.policy, block.key.as_ref())).collect();
        shared.active.audit().keys("unblock", &access, &keys);
    }
    json(&Done { limits: lifted.len() })
}

/// Returns the problem if the store did not change the blocks, or if that is unknown.
fn unchanged(error: StoreError) -> ProblemDetails {
    ProblemDetails::unavailable(match error {
        StoreError::Unavailable(_) => {
            "the store is unreachable: nothing was changed, and the current blocks still apply"
        }
        StoreError::TimedOut | StoreError::Interrupted(_) => {
            "the store did not answer, and may have made the change: repeat the request"
        }
        error => return error.into(),
    })
}

/// Finds a policy by its name. Returns the policy, or `None` for inline limits, and its domain. Does not find policies
/// of domains that the API key does not cover.
///
/// Does not parse the name: parsed policy names stay in memory.
fn find<'r>(
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
pub(super) fn find_name<'r>(
    policy: &str,
    revision: &'r Revision,
    access: Access<'_>,
) -> Result<(PolicyName, &'r str), ProblemDetails> {
    let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
    Ok((found.map_or(PolicyName::INLINE, |policy| policy.name), domain))
}

fn no_policy(access: Access<'_>) -> ProblemDetails {
    match access.allows_everywhere(Scope::Check) {
        true => ProblemDetails::unknown_policy(),
        false => ProblemDetails::forbidden("unknown policy in the domains that the API key covers"),
    }
}

/// Returns the parameters `policy` and `key`, or `None` without a `policy`.
fn name_in_query(request: &Request) -> Result<Option<(String, String)>, ProblemDetails> {
    let mut pairs = parse_query(request.uri())?;
    if pairs.iter().all(|(name, _)| name != "policy") {
        return Ok(None);
    }
    pairs.sort_unstable();
    match &mut *pairs {
        // An empty key stands for the single counter of a policy without `per`.
        [(first, key), (second, policy)] if first == "key" && second == "policy" => {
            Ok(Some((std::mem::take(policy), std::mem::take(key))))
        }
        _ => Err(ProblemDetails::request("`policy` needs a `key` and no other parameter")),
    }
}

impl BlockRequest {
    /// Returns the duration of the block.
    fn time(&self, now: Timestamp) -> Result<Duration, ProblemDetails> {
        let (time, problem) = match (self.seconds, self.until) {
            (Some(_), Some(_)) => (None, "expected `seconds` or `until`, not both".to_owned()),
            (seconds, None) => {
                let time = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
                let is_valid = (MIN_TIME..=MAX_TIME).contains(&time);
                let expected = format!("expected 1 to {} (30 days)", MAX_TIME.as_secs());
                (is_valid.then_some(time), format!("invalid `seconds`: {expected}"))
            }
            (None, Some(until)) => {
                let time = Duration::from_micros(Timestamp::from_secs(until).micros_since(now));
                let is_valid = !time.is_zero() && time <= MAX_TIME;
                let expected = "expected a Unix time in seconds, at most 30 days from now";
                (is_valid.then_some(time), format!("invalid `until`: {expected}"))
            }
        };
        time.ok_or_else(|| ProblemDetails::request(problem))
    }
}

impl BlockResponse {
    pub(super) fn new(policy: PolicyName, key: &KeyBuf, until: Timestamp) -> Self {
        let until = until.as_micros().div_ceil(1_000_000);
        Self { policy, key: text_of(key.as_ref()), until }
    }
}

impl<'r> NamedKey<'r> {
    fn new(
        policy: &str,
        key: &str,
        revision: &'r Revision,
        access: Access<'_>,
    ) -> Result<Self, ProblemDetails> {
        let settings = &revision.settings;
        if key.len() > settings.bounds.key_bytes.saturating_mul(settings.bounds.attributes) {
            return Err(ProblemDetails::bounds("the key is too long"));
        }
        let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
        let key = key_of(found, key).ok_or_else(|| {
            let per = found.map(|policy| policy.per.join(", ")).unwrap_or_default();
            ProblemDetails::request(match per.is_empty() {
                true => {
                    "invalid `key`: this policy has a single counter, so leave it empty".to_owned()
                }
                false => {
                    format!("invalid `key`: expected the values of `{per}`, separated by `, `")
                }
            })
        })?;
        let policy = found.map_or(PolicyName::INLINE, |policy| policy.name);
        Ok(Self { policy, domain, key })
    }

    /// Parses the parameters `policy` and `key`. Returns `None` without a `policy`.
    pub(super) fn from_query(
        request: &Request,
        revision: &'r Revision,
    ) -> Result<Option<Self>, ProblemDetails> {
        let access = revision.access(request.headers())?;
        let name = name_in_query(request)?;
        name.map(|(policy, key)| Self::new(&policy, &key, revision, access)).transpose()
    }

    /// Returns the policy. Inline limits are an error: the server does not know them.
    pub(super) fn configured_policy(&self) -> Result<PolicyName, ProblemDetails> {
        match self.policy {
            PolicyName::INLINE => {
                let detail = "the server does not store inline limits: use `key` and `limit`";
                Err(ProblemDetails::request(detail))
            }
            policy => Ok(policy),
        }
    }
}
