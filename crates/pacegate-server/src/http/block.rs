//! `/v1/block`: keys that are denied by hand. Held by this process alone, and gone when it ends.

use std::{sync::Arc, time::Duration};

use axum::extract::{Query, Request, State};
use http::StatusCode;
use pacegate::{KeyBuf, Policy, PolicyName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Problem, Shared, answer::json, model::Done, posted};
use crate::{
    blocks::Block,
    config::Scope,
    gate::Revision,
    live::{SHOWN, key_of, text_of},
    service::Access,
};

/// A key to deny for a while.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockRequest {
    /// The policy whose requests are denied; `ad-hoc` for limits that come with requests.
    policy: String,
    /// Whose requests, as `GET /v1/live` shows keys: the values of the policy's `per` attributes, joined by `, `.
    #[schemars(length(max = SHOWN))]
    key: String,
    /// For how long, from 1 second to 30 days; an hour unless said.
    #[schemars(range(min = 1, max = 2_592_000))]
    seconds: Option<u64>,
}

/// A key that is denied.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Block")]
pub(super) struct BlockModel {
    pub(super) policy: &'static str,
    /// Somebody else's input: show it as text only.
    pub(super) key: String,
    /// Seconds since the epoch.
    pub(super) until: u64,
}

/// A policy and one of its keys, by name.
#[derive(Debug)]
pub(super) struct Named<'r> {
    pub(super) policy: PolicyName,
    pub(super) domain: &'r str,
    pub(super) key: KeyBuf,
}

const HOUR: u64 = 3_600;
const LONGEST: u64 = 30 * 24 * HOUR;

/// `POST /v1/block`: denies a key, whatever its limits say.
pub(super) async fn block(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let revision = shared.gate.revision();
    // Whoever may ask nothing is not told what there is.
    let access = revision.access(&head.headers)?;
    let asked: BlockRequest =
        serde_json::from_slice(&body).map_err(|error| Problem::request(error.to_string()))?;
    let seconds = asked.seconds.unwrap_or(HOUR);
    if !(1..=LONGEST).contains(&seconds) {
        let detail = format!("a block lasts from 1 to {LONGEST} seconds, which are 30 days");
        return Err(Problem::request(detail));
    }
    let named = Named::new(&asked.policy, &asked.key, &revision, access)?;
    let access = revision.access_to(&head.headers, Scope::Admin, named.domain)?;
    if asked.key.chars().count() > SHOWN {
        // Nobody could see whom it is that this block denies.
        let detail = format!("a key that is blocked has at most {SHOWN} characters");
        return Err(Problem::bounds(detail));
    }
    let blocks = revision.engine.blocks();
    let until = blocks.add(named.policy, named.key.clone(), Duration::from_secs(seconds));
    let until = until.map_err(|error| Problem::too_many_blocks(error.to_string()))?;
    shared.gate.audit().keys("block", &access, &[(named.policy, named.key.as_ref())]);
    json(StatusCode::OK, &BlockModel::new(named.policy, &named.key, until))
}

/// `DELETE /v1/block`: lifts what is shown so. One that is not there is no trouble.
///
/// What a policy is, and whether there is one, may have changed since. So the key is not made of its text again.
pub(super) async fn unblock(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    let access = revision.access(request.headers())?;
    let (policy, key) = name_in_query(&request)?
        .ok_or_else(|| Problem::request("name the `policy` and the `key`"))?;
    let access = match find(&policy, &revision, access) {
        Some((_, domain)) => revision.access_to(request.headers(), Scope::Admin, domain)?,
        None => revision.access_everywhere(request.headers(), Scope::Admin)?,
    };
    let is_meant =
        |block: &Block| block.policy.as_str() == policy && text_of(block.key.as_ref()) == key;
    let lifted = revision.engine.blocks().lift(is_meant);
    if lifted.is_empty() {
        // Whoever wrote what cannot be a name is told so.
        Named::new(&policy, &key, &revision, access)?;
    } else {
        let keys: Vec<_> = lifted.iter().map(|block| (block.policy, block.key.as_ref())).collect();
        shared.gate.audit().keys("unblock", &access, &keys);
    }
    json(StatusCode::OK, &Done { limits: lifted.len() })
}

/// The policy of this name, or none for limits that come with requests, and the domain. What is in no domain of whoever
/// asks is not there for them: not even its name is told.
///
/// Names that are made of text are kept for good, so those that are there already are looked through.
fn find<'r>(
    policy: &str,
    revision: &'r Revision,
    access: Access<'_>,
) -> Option<(Option<&'r Policy>, &'r str)> {
    let mut all = revision.engine.policies().policies().iter();
    let own = all.find(|other| other.name.as_str() == policy);
    let found = match own {
        None if policy != PolicyName::AD_HOC.as_str() => None,
        own => Some((own, own.map_or("", |policy| &policy.domain))),
    };
    found.filter(|(_, domain)| access.allows(Scope::Check, domain))
}

/// Finds a policy by its name. Returns the name and the domain.
pub(super) fn find_name<'r>(
    policy: &str,
    revision: &'r Revision,
    access: Access<'_>,
) -> Result<(PolicyName, &'r str), Problem> {
    let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
    Ok((found.map_or(PolicyName::AD_HOC, |policy| policy.name), domain))
}

fn no_policy(access: Access<'_>) -> Problem {
    match access.allows_everywhere(Scope::Check) {
        true => Problem::unknown_policy(),
        false => Problem::forbidden("no policy in a domain that it is for has this name"),
    }
}

/// The parameters `policy` and `key`. `None` if no policy is named.
fn name_in_query(request: &Request) -> Result<Option<(String, String)>, Problem> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
    let Query(pairs) = query.map_err(|error| Problem::request(error.body_text()))?;
    let of = |name: &str| pairs.iter().filter(|(other, _)| other == name).collect::<Vec<_>>();
    match (&*of("policy"), &*of("key")) {
        ([], _) => Ok(None),
        ([(_, policy)], [(_, key)]) if pairs.len() == 2 => Ok(Some((policy.clone(), key.clone()))),
        // It has to be said that the budget of all is meant.
        _ => Err(Problem::request("with a `policy` goes its `key`, and nothing else")),
    }
}

impl BlockModel {
    pub(super) fn new(policy: PolicyName, key: &KeyBuf, until: pacegate::Timestamp) -> Self {
        let until = until.as_micros().div_ceil(1_000_000);
        Self { policy: policy.as_str(), key: text_of(key.as_ref()), until }
    }
}

impl<'r> Named<'r> {
    fn new(
        policy: &str,
        key: &str,
        revision: &'r Revision,
        access: Access<'_>,
    ) -> Result<Self, Problem> {
        let settings = &revision.settings;
        if key.len() > settings.bounds.key_bytes.saturating_mul(settings.bounds.attributes) {
            return Err(Problem::bounds("the key is longer than any that is taken"));
        }
        let (found, domain) = find(policy, revision, access).ok_or_else(|| no_policy(access))?;
        let key = key_of(found, key).ok_or_else(|| {
            let per = found.map(|policy| policy.per.join(", ")).unwrap_or_default();
            let one = "this policy has one budget for all: leave `key` empty".to_owned();
            let several = format!("write the values of `{per}` as `key`, with `, ` between them");
            Problem::request(if per.is_empty() { one } else { several })
        })?;
        let policy = found.map_or(PolicyName::AD_HOC, |policy| policy.name);
        Ok(Self { policy, domain, key })
    }

    /// By the parameters `policy` and `key`. `None` if no policy is named.
    pub(super) fn from_query(
        request: &Request,
        revision: &'r Revision,
    ) -> Result<Option<Self>, Problem> {
        let access = revision.access(request.headers())?;
        let name = name_in_query(request)?;
        name.map(|(policy, key)| Self::new(&policy, &key, revision, access)).transpose()
    }

    /// The policy, unless the limits have to be known, too.
    pub(super) fn counting(&self) -> Result<PolicyName, Problem> {
        match self.policy {
            PolicyName::AD_HOC => {
                let detail = "limits that came with requests are not kept: write `key` and `limit`";
                Err(Problem::request(detail))
            }
            policy => Ok(policy),
        }
    }
}
