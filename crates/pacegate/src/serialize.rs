//! Serde implementations: types that have a text are strings, and a decision is an object.

use std::{borrow::Cow, fmt::Display, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeStruct};

use crate::{
    Algorithm, Decision, Limit, PolicyName, ReservationId, Source,
    policy::{FailureMode, Glob, Lease, Mode},
};

macro_rules! texts {
    ($($(#[$doc:meta])* $type:ty;)*) => {$(
        $(#[$doc])*
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        $(#[$doc])*
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }
    )*};
}

texts! {
    /// As text, `10/second burst 20`. A limit with a custom algorithm can be serialized, but not deserialized.
    Limit;
    /// As its name. A custom algorithm can be serialized, but not deserialized.
    Algorithm;
    /// As text. A deserialized name stays in memory, so deserialize names from configuration, never from requests.
    PolicyName;
    /// As text, `local 1/3`.
    FailureMode;
    /// As text, `enforce` or `shadow`.
    Mode;
    /// As text, `50` or `5%`.
    Lease;
    /// As text.
    Glob;
    /// As text.
    ReservationId;
    /// As its [name](Source::as_str).
    Source;
}

/// The JSON form of a decision, also of `POST /v1/check` and of the CLI. Times are in seconds, exact to the
/// microsecond.
///
/// `policy`, `limit` and `remaining` are null if no policy applies. `retry_after` is null if the request was allowed or
/// never will be. To add fields, flatten a decision into a struct with `#[serde(flatten)]`.
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Decision", 9)?;
        fields.serialize_field("allowed", &self.is_allowed())?;
        fields.serialize_field("policy", &self.policy())?;
        fields.serialize_field("limit", &self.limit())?;
        fields.serialize_field("remaining", &self.limit().map(|_| self.remaining()))?;
        fields.serialize_field("retry_after", &self.retry_after().map(seconds))?;
        fields.serialize_field("reset_after", &seconds(self.reset_after()))?;
        fields.serialize_field("source", &self.source())?;
        fields.serialize_field("shadow_denied", &self.is_shadow_denied())?;
        fields.serialize_field("degraded", &self.is_degraded())?;
        fields.end()
    }
}

/// Returns a duration in seconds. A single division rounds once, so the shortest text of the result has the exact
/// microseconds of durations up to 31 years (15 digits).
#[expect(clippy::cast_precision_loss, clippy::float_arithmetic, reason = "for display only")]
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

fn parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn types_with_text_round_trip() {
        fn round_trip<T>(text: &str)
        where
            T: Serialize + for<'de> Deserialize<'de> + FromStr<Err: Debug> + Debug + PartialEq,
        {
            let value: T = text.parse().unwrap();
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value);
        }

        for limit in ["10/second burst 20", "5/30s sliding-log", "2/minute concurrency", "0/day"] {
            round_trip::<Limit>(limit);
        }
        for algorithm in Algorithm::BUILT_IN {
            round_trip::<Algorithm>(algorithm.name());
        }
        for failure in ["open", "closed", "local", "local 1/3"] {
            round_trip::<FailureMode>(failure);
        }
        round_trip::<PolicyName>("login-per-ip");
        round_trip::<Mode>("shadow");
        round_trip::<Lease>("5%");
        round_trip::<Glob>("/api/**");
        round_trip::<Source>("deny-cache");
        let escaped = serde_json::from_str::<PolicyName>("\"login-\\u0070er-ip\"").unwrap();
        assert_eq!(escaped.as_str(), "login-per-ip");
    }

    #[test]
    fn invalid_text_is_rejected_with_the_reason() {
        let own = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        let error = serde_json::from_str::<Limit>("\"10/fortnight\"").unwrap_err();
        assert!(error.to_string().starts_with(&own("10/fortnight")), "{error}");
        let error = serde_json::from_str::<PolicyName>("\"a b\"").unwrap_err();
        assert!(error.to_string().starts_with("`a b` is not a policy name"), "{error}");
        assert!(serde_json::from_str::<Limit>("10").is_err());
    }

    #[test]
    fn decision_has_one_json_form() {
        let limit = Limit::per_minute(3);
        let policy = "api".parse().unwrap();
        let denied = Decision::denial(policy, limit, 0, Some(Duration::from_micros(48_507_849)));
        let expected = concat!(
            r#"{"allowed":false,"policy":"api","limit":"3/minute","remaining":0,"#,
            r#""retry_after":48.507849,"reset_after":48.507849,"source":"store","#,
            r#""shadow_denied":false,"degraded":false}"#,
        );
        assert_eq!(serde_json::to_string(&denied).unwrap(), expected);
        let unlimited = serde_json::to_value(Decision::UNLIMITED).unwrap();
        for field in ["policy", "limit", "remaining", "retry_after"] {
            assert_eq!(unlimited[field], serde_json::Value::Null, "{field}");
        }
        assert_eq!(unlimited["source"], "unlimited");
    }

    proptest! {
        #[test]
        fn times_are_written_to_the_microsecond(micros in 10_u64..1_000_000_000_000_000) {
            let text = serde_json::to_string(&seconds(Duration::from_micros(micros))).unwrap();
            let (whole, part) = text.split_once('.').unwrap();
            let written = format!("{whole}{part:0<6}");
            prop_assert_eq!(written.parse::<u64>().unwrap(), micros);
        }
    }
}
