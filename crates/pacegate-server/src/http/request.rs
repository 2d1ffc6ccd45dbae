//! Request bodies and query parameters of checks, parsed without copies and validated against the bounds.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData, time::Duration};

use axum::extract::Query;
use http::Uri;
use pacegate::Request;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use smallvec::SmallVec;

use super::ProblemDetails;
use crate::{
    check::Check,
    config::Bounds,
    inline_limits::{self, InlineLimitError, Limits, MAX_LIMITS},
    reservations,
};

/// A request to check: by the configured policies, or for one key with its own limits.
///
/// Write either `attributes` and `domain`, or `key` and `limit`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CheckRequest", extend("anyOf" = [
    { "properties": { "key": false, "limit": false } },
    { "properties": { "domain": false, "attributes": false }, "required": ["key", "limit"] },
]))]
pub(super) struct CheckBody<'a> {
    /// Domain whose policies apply. Default: the unnamed domain.
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    /// Names and values that policies match and count by.
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    attributes: Option<Attributes<'a>>,
    /// Key to limit by `limit` instead of by policies.
    key: Option<Text<'a>>,
    /// Limits of `key`. Needs an API key with `inline: true` if API keys are configured.
    limit: Option<LimitTexts<'a>>,
    /// Units that the request takes. Default: 1. A cost of 0 is a peek.
    cost: Option<u64>,
    /// The units are already spent: records them in full, even if they exceed a limit. Later requests wait until the
    /// debt is paid back. For checks only.
    #[serde(default)]
    spent: bool,
    /// Takes as many units as there are, up to the cost. The answer has their number in `granted`. For checks only.
    #[serde(default)]
    pub(super) up_to: bool,
    /// Idempotency key: repeated checks with the same id are charged once. For checks only, with a Redis store.
    #[schemars(length(min = 1, max = 128))]
    id: Option<Text<'a>>,
}

/// A permit to release or renew, with the request that acquired it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PermitRequest")]
pub(super) struct PermitBody<'a> {
    #[serde(borrow, flatten)]
    check: CheckBody<'a>,
    /// The permit that `POST /v1/acquire` returned.
    #[schemars(regex(pattern = "^[0-9a-f]{1,32}$"))]
    permit: Text<'a>,
}

/// A request whose real cost is known only afterwards; `cost` is the estimate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReserveRequest")]
pub(super) struct ReserveBody<'a> {
    #[serde(borrow, flatten)]
    check: CheckBody<'a>,
    /// Seconds for which the reservation is open, from 1 to 604800 (7 days). Default: 300. Choose it longer than the
    /// work can take: then it ends, and the estimate stays charged.
    #[schemars(range(min = 1, max = 604_800))]
    ttl: Option<u64>,
}

/// A reservation to settle.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SettleRequest")]
pub(super) struct SettleBody {
    /// The reservation that `POST /v1/reserve` returned.
    #[schemars(length(max = 16_384))]
    pub(super) reservation: String,
    /// The units that were used. Fewer than the estimate: the rest is returned. More: the difference is charged, and
    /// may become debt.
    pub(super) used: u64,
}

/// A reservation to cancel.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CancelRequest")]
pub(super) struct CancelBody {
    /// The reservation that `POST /v1/reserve` returned.
    #[schemars(length(max = 16_384))]
    pub(super) reservation: String,
}

/// Requests to check independently, in this order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BatchRequest")]
pub(super) struct BatchBody<T> {
    requests: Vec<T>,
}

/// A string, borrowed from the body unless it contains escapes.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transparent, inline)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// One limit such as `100/minute`, or a list of limits that must all admit the request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a limit, such as \"100/minute\", or a list of limits")]
#[schemars(inline)]
enum LimitTexts<'a> {
    One(
        #[serde(borrow)]
        #[schemars(length(max = 64), regex(pattern = LIMIT_PATTERN))]
        Text<'a>,
    ),
    Many(
        #[serde(borrow)]
        #[schemars(
            length(min = 1, max = 16),
            inner(length(max = 64), regex(pattern = LIMIT_PATTERN))
        )]
        Vec<Text<'a>>,
    ),
}

/// Names and values of attributes, in their order.
#[derive(Debug, Default)]
struct Attributes<'a>(SmallVec<[(Text<'a>, Text<'a>); 8]>);

/// A JSON object. A derived struct alone also accepts a list of its fields.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

/// The general form of a limit, for the schema. It allows every unit: [`Limit`] has the list.
const LIMIT_PATTERN: &str = r"^\s*[0-9][0-9_]*\s*(/| per )\s*[0-9]*[a-zµ]+(\s.*)?$";
const MAX_LIMIT_BYTES: usize = 64;
const INVALID_ATTRIBUTE: &str = "invalid `attribute`: expected NAME:VALUE, such as user:alice";
const PARAMETERS: &str =
    "expected `domain` and any number of `attribute`, or `key` and any number of `limit`";
const EITHER_FORM: &str = "write either `key` and `limit`, or `attributes` and `domain`";

/// Parses a JSON object.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ProblemDetails> {
    let parsed: Result<Object<T>, _> = serde_json::from_slice(body);
    parsed.map(|Object(value)| value).map_err(|error| ProblemDetails::request(error.to_string()))
}

/// Parses the body of a batch of at most `max` requests.
pub(super) fn parse_batch(
    body: &[u8],
    max: usize,
) -> Result<Vec<Object<CheckBody<'_>>>, ProblemDetails> {
    // Counts first: an empty request takes 3 bytes of a body and several hundred in memory.
    let counted: BatchBody<IgnoredAny> = parse(body)?;
    let count = counted.requests.len();
    if count > max {
        return Err(ProblemDetails::request(format!(
            "{count} requests exceed the maximum of {max}"
        )));
    }
    let batch: BatchBody<_> = parse(body)?;
    Ok(batch.requests)
}

/// Parses the query of a URI.
pub(super) fn parse_query(uri: &Uri) -> Result<Vec<(String, String)>, ProblemDetails> {
    let query = Query::try_from_uri(uri);
    query.map(|Query(pairs)| pairs).map_err(|error| ProblemDetails::request(error.body_text()))
}

impl<'a> CheckBody<'a> {
    /// Parses the body of an endpoint that is not a check, and so takes neither `id` nor `spent` nor `up_to`.
    pub(super) fn parse_without_id(body: &'a [u8]) -> Result<Self, ProblemDetails> {
        parse::<Self>(body)?.without_id()
    }

    fn without_id(self) -> Result<Self, ProblemDetails> {
        match self.id {
            Some(_) => Err(ProblemDetails::request("`id` is for checks only")),
            None if self.spent => Err(ProblemDetails::request("`spent` is for checks only")),
            None if self.up_to => Err(ProblemDetails::request("`up_to` is for checks only")),
            None => Ok(self),
        }
    }

    /// Validates the request.
    pub(super) fn validate(&self, bounds: &Bounds) -> Result<Check<'_>, ProblemDetails> {
        let cost = self.cost.unwrap_or(1);
        let id = self.id.as_ref().map(|Text(id)| id.as_bytes());
        if id.is_some_and(|id| !(1..=Request::MAX_ID).contains(&id.len())) {
            let max = Request::MAX_ID;
            return Err(ProblemDetails::request(format!(
                "invalid `id`: expected from 1 to {max} bytes"
            )));
        }
        if self.spent && self.up_to {
            let detail = "`spent` and `up_to` exclude each other: spent units are recorded in full";
            return Err(ProblemDetails::request(detail));
        }
        let (key, limit) = match (&self.key, &self.limit) {
            (None, None) => {
                let request = self.request(bounds)?.cost(cost);
                let request = if self.spent { request.spent() } else { request };
                let request = match id {
                    None => Ok(request),
                    Some(id) => request.id(id),
                };
                let request =
                    request.map_err(|error| ProblemDetails::request(error.to_string()))?;
                return Ok(Check::Policies(request));
            }
            (Some(_), None) => {
                let detail =
                    "`key` needs a `limit`, such as \"100/minute\"; for policies, use `attributes`";
                return Err(ProblemDetails::request(detail));
            }
            (None, Some(_)) => return Err(ProblemDetails::request("`limit` needs a `key`")),
            (Some(Text(key)), Some(limit)) => (key, limit),
        };
        if self.domain.is_some() || self.attributes.is_some() {
            return Err(ProblemDetails::request(EITHER_FORM));
        }
        check_length("the key", key, bounds)?;
        let (key, limits) = (key.as_bytes(), limit.parse()?);
        Ok(Check::Inline { key, limits, cost, id, spent: self.spent })
    }

    fn request(&self, bounds: &Bounds) -> Result<Request<'_>, ProblemDetails> {
        let mut request = Request::new();
        if let Some(Text(domain)) = &self.domain {
            check_length("the domain", domain, bounds)?;
            request = request.in_domain(domain);
        }
        let attributes = self.attributes.as_ref().map_or(&[][..], |Attributes(pairs)| pairs);
        if attributes.len() > bounds.attributes {
            return Err(ProblemDetails::too_many_attributes(bounds));
        }
        for (index, (Text(name), Text(value))) in attributes.iter().enumerate() {
            check_length("the name of an attribute", name, bounds)?;
            check_length("the value of an attribute", value, bounds)?;
            if attributes[..index].iter().any(|(Text(other), _)| other == name) {
                return Err(ProblemDetails::request(format!("duplicate attribute `{name}`")));
            }
            request = request.with(name, &**value);
        }
        Ok(request)
    }
}

impl CheckBody<'static> {
    /// Parses query parameters: `domain`, any number of `attribute=NAME:VALUE`, or `key` and any number of `limit`.
    pub(super) fn from_query(uri: &Uri) -> Result<Self, ProblemDetails> {
        let mut body = Self::default();
        let mut limits = Vec::new();
        for (name, value) in parse_query(uri)? {
            let replaced = match &*name {
                "domain" => body.domain.replace(value.into()),
                "key" => body.key.replace(value.into()),
                "limit" => {
                    limits.push(value.into());
                    None
                }
                "attribute" => {
                    let (name, value) = value
                        .split_once(':')
                        .ok_or_else(|| ProblemDetails::request(INVALID_ATTRIBUTE))?;
                    let Attributes(pairs) = body.attributes.get_or_insert_default();
                    pairs.push((name.to_owned().into(), value.to_owned().into()));
                    None
                }
                other => {
                    let detail = format!("unknown parameter `{other}`: {PARAMETERS}");
                    return Err(ProblemDetails::request(detail));
                }
            };
            if replaced.is_some() {
                return Err(ProblemDetails::request(format!("duplicate parameter `{name}`")));
            }
        }
        body.limit = (!limits.is_empty()).then_some(LimitTexts::Many(limits));
        Ok(body)
    }
}

impl<'a> PermitBody<'a> {
    /// Returns the permit and the request that acquired it.
    pub(super) fn split(self) -> Result<(u128, CheckBody<'a>), ProblemDetails> {
        let Self { check, permit: Text(permit) } = self;
        let is_hex =
            (1..=32).contains(&permit.len()) && permit.bytes().all(|b| b.is_ascii_hexdigit());
        let permit =
            u128::from_str_radix(&permit, 16).ok().filter(|_| is_hex).ok_or_else(|| {
                let detail =
                    "invalid `permit`: expected the 32 hexadecimal digits of POST /v1/acquire";
                ProblemDetails::request(detail)
            })?;
        Ok((permit, check.without_id()?))
    }
}

impl<'a> ReserveBody<'a> {
    /// Returns the time for which the reservation is open, and the request.
    pub(super) fn split(self) -> Result<(Duration, CheckBody<'a>), ProblemDetails> {
        let ttl = reservations::ttl(self.ttl)
            .map_err(|error| ProblemDetails::request(format!("invalid `ttl`: {error}")))?;
        Ok((ttl, self.check.without_id()?))
    }
}

impl LimitTexts<'_> {
    fn parse(&self) -> Result<Limits, ProblemDetails> {
        let texts = match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        };
        if texts.is_empty() {
            return Err(ProblemDetails::request("`limit` needs at least one limit"));
        }
        let mut limits = Limits::new();
        for Text(text) in texts {
            if text.len() > MAX_LIMIT_BYTES {
                return Err(ProblemDetails::bounds(format!(
                    "a limit exceeds {MAX_LIMIT_BYTES} bytes"
                )));
            }
            inline_limits::add(&mut limits, text).map_err(|error| match error {
                InlineLimitError::TooMany => {
                    ProblemDetails::bounds(format!("more than {MAX_LIMITS} limits"))
                }
                error => ProblemDetails::limit(error.to_string()),
            })?;
        }
        Ok(limits)
    }
}

fn check_length(name: &str, text: &str, bounds: &Bounds) -> Result<(), ProblemDetails> {
    match bounds.key_bytes {
        max if text.len() > max => {
            Err(ProblemDetails::bounds(format!("{name} exceeds {max} bytes")))
        }
        _ => Ok(()),
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor(PhantomData))
    }
}

struct AttributesVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for AttributesVisitor<'a> {
    type Value = Attributes<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'a>, A::Error> {
        let mut attributes = Attributes::default();
        while let Some(pair) = map.next_entry()? {
            attributes.0.push(pair);
        }
        Ok(attributes)
    }
}
