//! `/v1/block`: keys that an operator denies.

use axum::extract::Request;
use pacegate::{KeyBuf, PolicyName, StoreError, Timestamp};
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
    blocks::{BlockError, BlockTimeError, NameError, NamedKey, block_time, find, is_named},
    config::Scope,
    live::{MAX_SHOWN_CHARS, text_of},
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

/// `POST /v1/block`: blocks a key.
pub(super) async fn block(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let revision = shared.active.revision();
    // Checked first: without an API key, errors must not reveal the names of policies.
    let access = revision.access(&head.headers)?;
    let body: BlockRequest = parse(&body)?;
    let blocks = &revision.engine.blocks;
    let time = block_time(body.seconds, body.until, blocks.now())?;
    let named = NamedKey::new(&body.policy, &body.key, &revision, access)?;
    let access = revision.access_to(&head.headers, Scope::Admin, named.domain)?;
    NamedKey::check_shown(&body.key)?;
    let until = blocks.add(named.policy, named.key.clone(), time).await;
    let until = until.map_err(|error| match error {
        BlockError::TooMany => ProblemDetails::too_many_blocks(error.to_string()),
        BlockError::Store(error) => unchanged(error),
    })?;
    shared.active.audit.keys("block", &access, &[(named.policy, named.key.as_ref())]);
    json(&BlockResponse::new(named.policy, &named.key, until))
}

/// `DELETE /v1/block`: removes the blocks that `GET /v1/live` shows with this policy and key.
pub(super) async fn unblock(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    let access = revision.access(request.headers())?;
    let (policy, key) = name_in_query(&request)?
        .ok_or_else(|| ProblemDetails::request("the parameters `policy` and `key` are required"))?;
    let access = match find(&policy, &revision, access) {
        Some((_, domain)) => revision.access_to(request.headers(), Scope::Admin, domain)?,
        None => revision.access_everywhere(request.headers(), Scope::Admin)?,
    };
    let is_meant = |block: &Block| is_named(block, &policy, &key);
    let lifted = revision.engine.blocks.lift(is_meant).await.map_err(unchanged)?;
    if lifted.is_empty() {
        // Reports a policy or a key that cannot exist.
        NamedKey::new(&policy, &key, &revision, access)?;
    } else {
        let keys: Vec<_> = lifted.iter().map(|block| (block.policy, block.key.as_ref())).collect();
        shared.active.audit.keys("unblock", &access, &keys);
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

impl BlockResponse {
    pub(super) fn new(policy: PolicyName, key: &KeyBuf, until: Timestamp) -> Self {
        let until = until.as_micros().div_ceil(1_000_000);
        Self { policy, key: text_of(key.as_ref()), until }
    }
}

impl<'r> NamedKey<'r> {
    /// Parses the parameters `policy` and `key`. Returns `None` without a `policy`.
    pub(super) fn from_query(
        request: &Request,
        revision: &'r Revision,
    ) -> Result<Option<Self>, ProblemDetails> {
        let access = revision.access(request.headers())?;
        let Some((policy, key)) = name_in_query(request)? else { return Ok(None) };
        Ok(Some(Self::new(&policy, &key, revision, access)?))
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

impl From<NameError> for ProblemDetails {
    fn from(error: NameError) -> Self {
        match error {
            NameError::UnknownPolicy => Self::unknown_policy(),
            NameError::HiddenPolicy => Self::forbidden(error.to_string()),
            NameError::TooLong | NameError::NotShown => Self::bounds(error.to_string()),
            NameError::SingleCounter | NameError::OtherParts(_) => Self::request(error.to_string()),
        }
    }
}

impl From<BlockTimeError> for ProblemDetails {
    fn from(error: BlockTimeError) -> Self {
        Self::request(error.to_string())
    }
}
