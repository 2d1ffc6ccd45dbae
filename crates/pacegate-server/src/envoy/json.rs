//! The JSON form of the messages of the rate limit service, as envoyproxy/ratelimit accepts them at `POST /json`.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    metadata,
    proto::{Duration, Struct, Unit},
};

/// A number, which may be written as a string.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number")]
enum NumberOrText<T> {
    Number(u64),
    Other(T),
}

/// Reads `null` as the default, as the JSON form of Protobuf does.
pub(super) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn u64_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(some_u64_or_text(deserializer)?.unwrap_or_default())
}

pub(super) fn u32_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = u64_or_text(deserializer)?;
    u32::try_from(number).map_err(|_| D::Error::custom("hits exceed 4294967295"))
}

pub(super) fn some_u64_or_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    match Option::<NumberOrText<String>>::deserialize(deserializer)? {
        None => Ok(None),
        Some(NumberOrText::Number(number)) => Ok(Some(number)),
        Some(NumberOrText::Other(text)) => {
            text.parse().map(Some).map_err(|_| D::Error::custom("expected a whole number"))
        }
    }
}

/// Reduces a larger number to the highest one.
pub(super) fn at_most_u32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(u32::try_from(u64_or_text(deserializer)?).unwrap_or(u32::MAX))
}

pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    or_default::<String, D>(deserializer).map(Bytes::from)
}

/// Parses the name or the number of a unit.
pub(super) fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    const EXPECTED: &str = "unknown unit: expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";
    let unit = match Option::<NumberOrText<Unit>>::deserialize(deserializer) {
        Ok(None) => Some(Unit::Unknown),
        Ok(Some(NumberOrText::Other(unit))) => Some(unit),
        Ok(Some(NumberOrText::Number(number))) => {
            i32::try_from(number).ok().and_then(|number| Unit::try_from(number).ok())
        }
        Err(_) => None,
    };
    unit.map(i32::from).ok_or_else(|| D::Error::custom(EXPECTED))
}

/// Writes a number as the name of its variant. An unknown number is the default.
pub(super) fn name_of<E: TryFrom<i32> + Default + Serialize, S: Serializer>(
    number: &i32,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    E::try_from(*number).unwrap_or_default().serialize(serializer)
}

pub(super) fn seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|duration| format!("{}s", duration.seconds.max(0))).serialize(serializer)
}

pub(super) fn lossy<S: Serializer>(text: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(text))
}

pub(super) fn metadata<S: Serializer>(
    message: &Option<Struct>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    message.as_ref().map(metadata::to_json).serialize(serializer)
}

pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
    use crate::config::Scope;

    #[test]
    fn requests_are_parsed_in_both_spellings() {
        let body = r#"{"domain": "d", "hitsAddend": 2, "descriptors": [{
            "entries": [{"key": "k", "value": "v"}, {"key": "l"}],
            "limit": {"requestsPerUnit": 5, "unit": "WEEK"},
            "hits_addend": "7", "isNegativeHits": true}]}"#;
        let request = serde_json::from_str::<RateLimitRequest>(body).unwrap();
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
        let request = serde_json::from_str::<RateLimitRequest>(body).unwrap();
        let entry = Entry { key: "k".into(), value: "".into() };
        let limit = RateLimitOverride { requests_per_unit: 0, unit: 0 };
        let second =
            RateLimitDescriptor { entries: vec![entry], limit: Some(limit), ..Default::default() };
        assert_eq!(request.descriptors, [RateLimitDescriptor::default(), second]);
        assert_eq!((&*request.domain, request.hits_addend), (&b""[..], 0));
        let nothing = serde_json::from_str::<RateLimitRequest>(r#"{"descriptors": null}"#).unwrap();
        assert!(nothing.descriptors.is_empty());
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
            assert!(serde_json::from_str::<RateLimitRequest>(body).is_err(), "{body}");
        }
    }
}
