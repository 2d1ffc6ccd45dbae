//! The JSON form of the rate limit service, as envoyproxy/ratelimit accepts it at `POST /json`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value as Json;

use super::{
    decide::{EnvoyDecision, EnvoyError, decide},
    metadata,
    proto::{
        Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
        RateLimitResponse, Unit,
    },
};
use crate::active_config::Revision;

/// A `RateLimitRequest` as JSON. Names may also be written with underscores, and numbers as strings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitRequest")]
pub(crate) struct JsonRequest {
    /// Domain whose rules or policies apply.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(required, length(min = 1))]
    domain: String,
    /// Descriptors, all or none of which are charged.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(required, length(min = 1))]
    descriptors: Vec<JsonDescriptor>,
    /// Hits of each descriptor without its own. Default: 1.
    #[serde(default, alias = "hits_addend", deserialize_with = "u32_or_text")]
    hits_addend: u32,
}

/// A descriptor as JSON.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitDescriptor")]
struct JsonDescriptor {
    #[serde(default, deserialize_with = "or_default")]
    entries: Vec<JsonEntry>,
    /// Replaces the configured limit. Needs an API key with `inline: true` if API keys are configured.
    limit: Option<JsonOverride>,
    #[serde(alias = "hits_addend", default, deserialize_with = "some_u64_or_text")]
    hits_addend: Option<u64>,
    /// Refunds the hits. Needs the scope `admin` if API keys are configured.
    #[serde(default, alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

/// A key and a value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Entry")]
struct JsonEntry {
    #[serde(default, deserialize_with = "or_default")]
    key: String,
    #[serde(default, deserialize_with = "or_default")]
    value: String,
}

/// The limit of a descriptor.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitOverride")]
struct JsonOverride {
    #[serde(default, alias = "requests_per_unit", deserialize_with = "u64_or_text")]
    #[schemars(with = "u32")]
    requests_per_unit: u64,
    #[serde(default, deserialize_with = "unit")]
    unit: JsonUnit,
}

/// A `RateLimitResponse` as JSON.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RateLimitResponse")]
pub(crate) struct JsonResponse {
    overall_code: JsonCode,
    /// One status for each descriptor, in their order.
    statuses: Vec<JsonStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    response_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, Json>>")]
    dynamic_metadata: Option<Json>,
}

/// The result for a descriptor.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DescriptorStatus")]
struct JsonStatus {
    code: JsonCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u32>,
    /// Seconds, such as `30s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+s$"))]
    duration_until_reset: Option<String>,
}

/// The limit that decided.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CurrentLimit")]
struct JsonLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    requests_per_unit: u32,
    unit: JsonUnit,
}

/// A header that Envoy adds to its response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Header")]
struct JsonHeader {
    key: String,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(rename = "Code")]
enum JsonCode {
    Unknown,
    Ok,
    OverLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(rename = "Unit")]
enum JsonUnit {
    #[default]
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
    Week,
}

/// A number, which may be written as a string.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number")]
enum NumberOrText<T> {
    Number(u64),
    Other(T),
}

impl JsonRequest {
    pub(crate) fn into_message(self) -> RateLimitRequest {
        RateLimitRequest {
            domain: self.domain.into(),
            descriptors: self.descriptors.into_iter().map(JsonDescriptor::into_message).collect(),
            hits_addend: self.hits_addend,
        }
    }

    /// Decides a request. Returns the response, and whether a failure mode decided.
    pub(crate) async fn decide(
        revision: &Revision,
        message: &RateLimitRequest,
    ) -> Result<(JsonResponse, bool), EnvoyError> {
        let EnvoyDecision { response, is_degraded } = decide(revision, message).await?;
        Ok((response.into(), is_degraded))
    }
}

impl JsonDescriptor {
    fn into_message(self) -> RateLimitDescriptor {
        let entries = self.entries.into_iter();
        RateLimitDescriptor {
            entries: entries
                .map(|entry| Entry { key: entry.key.into(), value: entry.value.into() })
                .collect(),
            limit: self.limit.map(|limit| RateLimitOverride {
                requests_per_unit: u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX),
                unit: limit.unit as i32,
            }),
            hits_addend: self.hits_addend,
            is_negative_hits: self.is_negative_hits,
        }
    }
}

impl JsonResponse {
    pub(crate) fn is_over_limit(&self) -> bool {
        self.overall_code == JsonCode::OverLimit
    }
}

/// Reads `null` as the default, as the JSON form of Protobuf does.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn u64_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(some_u64_or_text(deserializer)?.unwrap_or_default())
}

fn u32_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = u64_or_text(deserializer)?;
    u32::try_from(number).map_err(|_| D::Error::custom("hits exceed 4294967295"))
}

fn some_u64_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<NumberOrText<String>>::deserialize(deserializer)? {
        None => Ok(None),
        Some(NumberOrText::Number(number)) => Ok(Some(number)),
        Some(NumberOrText::Other(text)) => {
            text.parse().map(Some).map_err(|_| D::Error::custom("expected a whole number"))
        }
    }
}

/// Parses the name or the number of a unit.
fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JsonUnit, D::Error> {
    const EXPECTED: &str = "unknown unit: expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";
    match Option::<NumberOrText<JsonUnit>>::deserialize(deserializer) {
        Ok(None) => Ok(JsonUnit::Unknown),
        Ok(Some(NumberOrText::Other(unit))) => Ok(unit),
        Ok(Some(NumberOrText::Number(number))) => {
            let unit = i32::try_from(number).ok().and_then(|number| Unit::try_from(number).ok());
            unit.map(JsonUnit::from).ok_or_else(|| D::Error::custom(EXPECTED))
        }
        Err(_) => Err(D::Error::custom(EXPECTED)),
    }
}

impl From<Unit> for JsonUnit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Unknown => Self::Unknown,
            Unit::Second => Self::Second,
            Unit::Minute => Self::Minute,
            Unit::Hour => Self::Hour,
            Unit::Day => Self::Day,
            Unit::Month => Self::Month,
            Unit::Year => Self::Year,
            Unit::Week => Self::Week,
        }
    }
}

impl From<i32> for JsonCode {
    fn from(code: i32) -> Self {
        match Code::try_from(code) {
            Ok(Code::Ok) => Self::Ok,
            Ok(Code::OverLimit) => Self::OverLimit,
            Ok(Code::Unknown) | Err(_) => Self::Unknown,
        }
    }
}

impl From<RateLimitResponse> for JsonResponse {
    fn from(response: RateLimitResponse) -> Self {
        let headers = response.response_headers_to_add.into_iter();
        Self {
            overall_code: response.overall_code.into(),
            statuses: response.statuses.into_iter().map(JsonStatus::from).collect(),
            response_headers_to_add: headers
                .map(|header| JsonHeader { key: header.key, value: header.value })
                .collect(),
            dynamic_metadata: response.dynamic_metadata.as_ref().map(metadata::to_json),
        }
    }
}

impl From<DescriptorStatus> for JsonStatus {
    fn from(status: DescriptorStatus) -> Self {
        Self {
            code: status.code.into(),
            current_limit: status.current_limit.map(|limit| JsonLimit {
                name: (!limit.name.is_empty())
                    .then(|| String::from_utf8_lossy(&limit.name).into_owned()),
                requests_per_unit: limit.requests_per_unit,
                unit: Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).into(),
            }),
            limit_remaining: Some(status.limit_remaining).filter(|&remaining| remaining > 0),
            duration_until_reset: status
                .duration_until_reset
                .map(|reset| format!("{}s", reset.seconds.max(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Scope;

    #[test]
    fn requests_are_parsed_in_both_spellings() {
        let body = r#"{"domain": "d", "hitsAddend": 2, "descriptors": [{
            "entries": [{"key": "k", "value": "v"}, {"key": "l"}],
            "limit": {"requestsPerUnit": 5, "unit": "WEEK"},
            "hits_addend": "7", "isNegativeHits": true}]}"#;
        let request = serde_json::from_str::<JsonRequest>(body).unwrap().into_message();
        assert_eq!(request.scope(), Scope::Admin);
        assert_eq!((&*request.domain, request.hits_addend), (&b"d"[..], 2));
        let descriptor = &request.descriptors[0];
        assert_eq!(&*descriptor.entries[1].key, b"l");
        assert_eq!(descriptor.limit, Some(RateLimitOverride { requests_per_unit: 5, unit: 7 }));
        assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(7), true));
    }

    #[test]
    fn null_is_the_default() {
        let body = r#"{"domain": null, "hitsAddend": null, "descriptors": [{"entries": null, "limit": null,
            "hitsAddend": null, "isNegativeHits": null}, {"entries": [{"key": "k", "value": null}],
            "limit": {"requestsPerUnit": null, "unit": null}}]}"#;
        let request = serde_json::from_str::<JsonRequest>(body).unwrap().into_message();
        let entry = Entry { key: "k".into(), value: "".into() };
        let limit = RateLimitOverride { requests_per_unit: 0, unit: 0 };
        let second =
            RateLimitDescriptor { entries: vec![entry], limit: Some(limit), ..Default::default() };
        assert_eq!(request.descriptors, [RateLimitDescriptor::default(), second]);
        assert_eq!((&*request.domain, request.hits_addend), (&b""[..], 0));
        let nothing = serde_json::from_str::<JsonRequest>(r#"{"descriptors": null}"#).unwrap();
        assert!(nothing.into_message().descriptors.is_empty());
    }

    #[test]
    fn invalid_requests_are_rejected() {
        for body in [
            "",
            "{",
            r#"{"domain": 5}"#,
            r#"{"namespace": "d"}"#,
            r#"{"domain": "d", "hitsAddend": -1}"#,
            r#"{"domain": "d", "hitsAddend": 4294967296}"#,
            r#"{"domain": "d", "descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
        ] {
            assert!(serde_json::from_str::<JsonRequest>(body).is_err(), "{body}");
        }
    }
}
