//! Protobuf messages of `envoy.service.ratelimit.v3` and `grpc.health.v1`.
//!
//! Unused fields are omitted, and skipped when decoding. Text that is only passed on is kept as a slice of the message,
//! so that decoding does not copy it.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json;

/// A request of `envoy.service.ratelimit.v3`. In JSON, names may also be written with underscores, and numbers as
/// strings.
#[derive(Clone, PartialEq, Message, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitRequest {
    /// Domain whose rules or policies apply.
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(default, deserialize_with = "json::text")]
    #[schemars(with = "String", required, length(min = 1))]
    pub(crate) domain: Bytes,
    /// Descriptors, all or none of which are charged.
    #[prost(message, repeated, tag = "2")]
    #[serde(default, deserialize_with = "json::or_default")]
    #[schemars(required, length(min = 1))]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// Hits of each descriptor without its own. Default: 1.
    #[prost(uint32, tag = "3")]
    #[serde(default, alias = "hits_addend", deserialize_with = "json::u32_or_text")]
    pub(crate) hits_addend: u32,
}

/// A descriptor of a request.
#[derive(Clone, PartialEq, Message, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    #[serde(default, deserialize_with = "json::or_default")]
    pub(crate) entries: Vec<Entry>,
    /// Replaces the configured limit. Needs an API key with `inline: true` if API keys are configured.
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    /// Replaces that of the request. 0 is a peek.
    #[prost(message, optional, tag = "3")]
    #[serde(default, alias = "hits_addend", deserialize_with = "json::some_u64_or_text")]
    pub(crate) hits_addend: Option<u64>,
    /// Refunds the hits. Needs the scope `admin` if API keys are configured.
    #[prost(bool, tag = "4")]
    #[serde(default, alias = "is_negative_hits", deserialize_with = "json::or_default")]
    pub(crate) is_negative_hits: bool,
}

/// A key and a value.
#[derive(Clone, PartialEq, Message, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(default, deserialize_with = "json::text")]
    #[schemars(with = "String")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(default, deserialize_with = "json::text")]
    #[schemars(with = "String")]
    pub(crate) value: Bytes,
}

/// The limit of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Message, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    #[serde(default, alias = "requests_per_unit", deserialize_with = "json::at_most_u32")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(default, deserialize_with = "json::unit")]
    #[schemars(with = "Unit")]
    pub(crate) unit: i32,
}

/// A response of `envoy.service.ratelimit.v3`.
#[derive(Clone, PartialEq, Message, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "json::name_of::<Code, _>")]
    #[schemars(with = "Code")]
    pub(crate) overall_code: i32,
    /// One status for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json::metadata")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub(crate) dynamic_metadata: Option<Struct>,
}

/// The result for a descriptor.
#[derive(Clone, PartialEq, Message, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "json::name_of::<Code, _>")]
    #[schemars(with = "Code")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    #[serde(skip_serializing_if = "json::is_zero")]
    #[schemars(default)]
    pub(crate) limit_remaining: u32,
    /// Seconds, such as `30s`.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json::seconds")]
    #[schemars(with = "Option<String>", regex(pattern = "^[0-9]+s$"))]
    pub(crate) duration_until_reset: Option<Duration>,
}

/// The limit that decided.
#[derive(Clone, PartialEq, Message, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CurrentLimit")]
pub(crate) struct RateLimit {
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(skip_serializing_if = "Bytes::is_empty", serialize_with = "json::lossy")]
    #[schemars(with = "Option<String>")]
    pub(crate) name: Bytes,
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(serialize_with = "json::name_of::<Unit, _>")]
    #[schemars(with = "Unit")]
    pub(crate) unit: i32,
}

/// The result for a descriptor or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// The unit of a limit, with the same numbers in requests and responses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Enumeration, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i32)]
pub(crate) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// A header that Envoy adds to its response.
#[derive(Clone, PartialEq, Message, Serialize, JsonSchema)]
#[schemars(rename = "Header")]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(oneof = "ValueKind", tags = "1, 2, 3, 4, 5, 6")]
    pub(crate) kind: Option<ValueKind>,
}

/// The variants of a [`Value`].
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ValueKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    ListValue(ListValue),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<Value>,
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(crate) status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl Unit {
    /// All units from the shortest to the longest, with their seconds. A month has 30 days and a year 365.
    pub(crate) const BY_LENGTH: [(Self, u64); 7] = [
        (Self::Second, 1),
        (Self::Minute, 60),
        (Self::Hour, 3_600),
        (Self::Day, 86_400),
        (Self::Week, 604_800),
        (Self::Month, 2_592_000),
        (Self::Year, 31_536_000),
    ];

    /// Returns the name in rule files, in lower case.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Week => "week",
        }
    }

    /// Returns the duration, or `None` for the unknown unit.
    pub(crate) fn period(self) -> Option<std::time::Duration> {
        let (_, seconds) = Self::BY_LENGTH.into_iter().find(|(unit, _)| *unit == self)?;
        Some(std::time::Duration::from_secs(seconds))
    }

    /// Returns the unit nearest to a period by ratio: 30 s are nearer to a minute than to a second.
    pub(crate) fn nearest(period: std::time::Duration) -> Self {
        let millis = period.as_millis();
        let mut nearest = Self::Second;
        for pair in Self::BY_LENGTH.windows(2) {
            let between = u128::from(pair[0].1) * u128::from(pair[1].1) * 1_000_000;
            if millis * millis >= between {
                nearest = pair[1].0;
            }
        }
        nearest
    }
}

impl From<ValueKind> for Value {
    fn from(kind: ValueKind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        ValueKind::Text(text.to_owned()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &'static str, value: &'static str) -> Entry {
        Entry {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
        }
    }

    #[test]
    fn requests_are_decoded() {
        let bytes: &[u8] = &[
            0x0a, 0x01, b'd', // domain
            0x12, 0x14, // a descriptor
            0x0a, 0x08, 0x0a, 0x01, b'k', 0x12, 0x03, b'v', b'a', b'l', // an entry
            0x12, 0x04, 0x08, 0x05, 0x10, 0x07, // an override: 5 per week
            0x1a, 0x00, // explicit hits of 0
            0x20, 0x01, // negative hits
            0x78, 0x05, // unknown field 15
            0x18, 0x96, 0x01, // 150 hits
        ];
        let request = RateLimitRequest::decode(bytes).unwrap();
        let descriptor = RateLimitDescriptor {
            entries: vec![entry("k", "val")],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: Unit::Week.into() }),
            hits_addend: Some(0),
            is_negative_hits: true,
        };
        let domain = Bytes::from_static(b"d");
        assert_eq!(
            request,
            RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 150 }
        );
    }

    #[test]
    fn missing_hits_are_not_zero() {
        let request = RateLimitDescriptor::decode(Bytes::new()).unwrap();
        assert_eq!(request.hits_addend, None);
        let three: &[u8] = &[0x1a, 0x02, 0x08, 0x03];
        assert_eq!(RateLimitDescriptor::decode(three).unwrap().hits_addend, Some(3));
    }

    #[test]
    fn responses_are_encoded() {
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 300,
                unit: Unit::Minute.into(),
                name: Bytes::from_static(b"n"),
            }),
            limit_remaining: 7,
            duration_until_reset: Some(Duration { seconds: 59, nanos: 0 }),
        };
        let header = HeaderValue { key: "a".into(), value: "b".into() };
        let fields = BTreeMap::from([("x".to_owned(), Value::from("y"))]);
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![
                status,
                DescriptorStatus { code: Code::Ok.into(), ..Default::default() },
            ],
            response_headers_to_add: vec![header],
            dynamic_metadata: Some(Struct { fields }),
        };
        let expected: &[u8] = &[
            0x08, 0x02, // overall code
            0x12, 0x12, 0x08, 0x02, // the first status
            0x12, 0x08, 0x08, 0xac, 0x02, 0x10, 0x02, 0x1a, 0x01, b'n', // its limit
            0x18, 0x07, // remaining
            0x22, 0x02, 0x08, 0x3b, // reset
            0x12, 0x02, 0x08, 0x01, // the second status
            0x1a, 0x06, 0x0a, 0x01, b'a', 0x12, 0x01, b'b', // a header
            0x32, 0x0a, 0x0a, 0x08, 0x0a, 0x01, b'x', // metadata
            0x12, 0x03, 0x1a, 0x01, b'y',
        ];
        assert_eq!(response.encode_to_vec(), expected);
    }

    #[test]
    fn health_is_one_byte_each() {
        let request: &[u8] = &[0x0a, 0x02, b'r', b'l'];
        assert_eq!(HealthCheckRequest::decode(request).unwrap().service, "rl");
        let response = HealthCheckResponse { status: ServingStatus::NotServing.into() };
        assert_eq!(response.encode_to_vec(), [0x08, 0x02]);
    }

    #[test]
    fn units_have_the_numbers_of_envoy() {
        let numbers = Unit::BY_LENGTH.map(|(unit, _)| i32::from(unit));
        assert_eq!(numbers, [1, 2, 3, 4, 7, 5, 6]);
        assert_eq!(Unit::Unknown.period(), None);
        // The longest limit that a descriptor can bring: clients must not choose for how long they take up memory.
        let longest = Unit::BY_LENGTH.iter().filter_map(|(unit, _)| unit.period()).max();
        assert_eq!(longest, Some(std::time::Duration::from_secs(365 * 86_400)));
        assert_eq!(Unit::Month.period(), Some(std::time::Duration::from_secs(30 * 86_400)));
    }

    #[test]
    fn other_periods_take_the_nearest_unit() {
        for (millis, unit) in [
            (250, Unit::Second),
            (7_745, Unit::Second),
            (7_746, Unit::Minute),
            (30_000, Unit::Minute),
            (300_000, Unit::Minute),
            (900_000, Unit::Hour),
            (7_200_000, Unit::Hour),
            (6 * 86_400_000, Unit::Week),
            (90 * 86_400_000, Unit::Month),
            (3_660 * 86_400_000, Unit::Year),
        ] {
            assert_eq!(Unit::nearest(std::time::Duration::from_millis(millis)), unit, "{millis}");
        }
        for (unit, seconds) in Unit::BY_LENGTH {
            assert_eq!(Unit::nearest(std::time::Duration::from_secs(seconds)), unit);
        }
    }
}
