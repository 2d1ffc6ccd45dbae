//! The same questions and answers as JSON, as envoyproxy/ratelimit takes them at `POST /json`.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value as Json, json};

use super::{
    decide::{AskError, Decided, decide},
    metadata,
    proto::{
        Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
        RateLimitResponse, Unit,
    },
};
use crate::{config::Scope, gate::Revision};

/// A question in JSON.
#[derive(Debug)]
pub(crate) struct JsonRequest {
    domain: String,
    message: RateLimitRequest,
}

/// What is asked, in the JSON form of its message: names in camel case or as they are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hitsAddend")]
    hits_addend: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    #[serde(default)]
    entries: Vec<Pair>,
    limit: Option<Override>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "isNegativeHits")]
    is_negative_hits: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    #[serde(default, alias = "requestsPerUnit")]
    requests_per_unit: Number,
    #[serde(default)]
    unit: UnitName,
}

/// Large numbers may be texts.
#[derive(Clone, Copy, Debug, Default)]
struct Number(u64);

/// A name or a number.
#[derive(Clone, Copy, Debug)]
struct UnitName(Unit);

impl JsonRequest {
    /// Reads it. An error says where it is wrong.
    pub(crate) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let Question { domain, descriptors, hits_addend } = serde_json::from_slice(body)?;
        let message = RateLimitRequest {
            domain: domain.clone().into(),
            descriptors: descriptors.into_iter().map(Descriptor::into_message).collect(),
            hits_addend: hits_addend.small()?,
        };
        Ok(Self { domain, message })
    }

    /// The domain that is asked about.
    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    /// What whoever asks must be allowed to do there.
    pub(crate) fn scope(&self) -> Scope {
        self.message.scope()
    }

    /// Whether it brings limits that are used.
    pub(crate) fn is_inline(&self, revision: &Revision) -> bool {
        self.message.is_inline(revision)
    }

    /// Decides it: 200 or 429, the answer in JSON, and whether a failure mode decided.
    pub(crate) async fn answer(
        &self,
        revision: &Revision,
    ) -> Result<(StatusCode, Bytes, bool), AskError> {
        let Decided { response, is_degraded } = decide(revision, &self.message).await?;
        let is_over = response.overall_code == i32::from(Code::OverLimit);
        let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        Ok((status, write(&response).to_string().into(), is_degraded))
    }
}

impl Descriptor {
    fn into_message(self) -> RateLimitDescriptor {
        let entry = |pair: Pair| Entry { key: pair.key.into(), value: pair.value.into() };
        let limit = self.limit.map(|limit| RateLimitOverride {
            // More than the message can hold is as good as its most.
            requests_per_unit: limit.requests_per_unit.small().unwrap_or(u32::MAX),
            unit: limit.unit.0.into(),
        });
        RateLimitDescriptor {
            entries: self.entries.into_iter().map(entry).collect(),
            limit,
            hits_addend: self.hits_addend.map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits,
        }
    }
}

impl Number {
    fn small(self) -> Result<u32, serde_json::Error> {
        u32::try_from(self.0).map_err(|_| serde_json::Error::custom("hits above 4294967295"))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Json::deserialize(deserializer)? {
            Json::Number(number) => number.as_u64(),
            Json::String(text) => text.parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| D::Error::custom("not a number from 0 up"))
    }
}

impl Default for UnitName {
    fn default() -> Self {
        Self(Unit::Unknown)
    }
}

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let unit = match Json::deserialize(deserializer)? {
            Json::Number(number) => {
                number.as_i64().and_then(|number| Unit::try_from(i32::try_from(number).ok()?).ok())
            }
            Json::String(name) => {
                let is_named = |unit: &Unit| unit.word().to_ascii_uppercase() == name;
                let units = Unit::BY_LENGTH.into_iter().map(|(unit, _)| unit);
                units.chain([Unit::Unknown]).find(is_named)
            }
            _ => None,
        };
        unit.map(Self).ok_or_else(|| D::Error::custom("not a unit: write SECOND, MINUTE and so on"))
    }
}

fn write(response: &RateLimitResponse) -> Json {
    let mut object = Map::new();
    object.insert("overallCode".to_owned(), code(response.overall_code));
    object.insert("statuses".to_owned(), response.statuses.iter().map(status).collect());
    if !response.response_headers_to_add.is_empty() {
        let header =
            |header: &super::proto::HeaderValue| json!({"key": header.key, "value": header.value});
        let headers = response.response_headers_to_add.iter().map(header).collect();
        object.insert("responseHeadersToAdd".to_owned(), headers);
    }
    if let Some(message) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".to_owned(), metadata::to_json(message));
    }
    Json::Object(object)
}

fn code(code: i32) -> Json {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
    .into()
}

fn status(status: &DescriptorStatus) -> Json {
    let mut object = Map::new();
    object.insert("code".to_owned(), code(status.code));
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
        let mut current = Map::new();
        if !limit.name.is_empty() {
            current.insert("name".to_owned(), String::from_utf8_lossy(&limit.name).into());
        }
        current.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
        current.insert("unit".to_owned(), unit.word().to_ascii_uppercase().into());
        object.insert("currentLimit".to_owned(), current.into());
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = status.duration_until_reset {
        let reset = Duration::from_secs(u64::try_from(reset.seconds).unwrap_or_default());
        object.insert("durationUntilReset".to_owned(), format!("{}s", reset.as_secs()).into());
    }
    Json::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_in_both_spellings() {
        let body = r#"{"domain": "d", "hitsAddend": 2, "descriptors": [{
            "entries": [{"key": "k", "value": "v"}, {"key": "l"}],
            "limit": {"requestsPerUnit": 5, "unit": "WEEK"},
            "hits_addend": "7", "isNegativeHits": true}]}"#;
        let request = JsonRequest::read(body.as_bytes()).unwrap();
        assert_eq!((request.domain(), request.scope()), ("d", Scope::Admin));
        let request = request.message;
        assert_eq!((&*request.domain, request.hits_addend), (&b"d"[..], 2));
        let descriptor = &request.descriptors[0];
        assert_eq!(&*descriptor.entries[1].key, b"l");
        assert_eq!(descriptor.limit, Some(RateLimitOverride { requests_per_unit: 5, unit: 7 }));
        assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(7), true));
    }

    #[test]
    fn other_texts_are_refused() {
        for body in [
            "",
            "{",
            r#"{"domain": 5}"#,
            r#"{"namespace": "d"}"#,
            r#"{"domain": "d", "hitsAddend": -1}"#,
            r#"{"domain": "d", "hitsAddend": 4294967296}"#,
            r#"{"domain": "d", "descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
        ] {
            assert!(JsonRequest::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
