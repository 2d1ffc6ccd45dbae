//! Protobuf messages of `envoy.service.rate_limit_quota.v3`.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

use super::super::proto::Duration;

/// `RateLimitQuotaUsageReports`: requests of an Envoy since its last report.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UsageReports {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) usages: Vec<BucketUsage>,
}

/// The requests of one bucket.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketUsage {
    #[prost(message, optional, tag = "1")]
    pub(crate) id: Option<BucketId>,
    /// Whole seconds in Envoy 1.40, and 0 in the first report of a bucket.
    #[prost(message, optional, tag = "2")]
    pub(crate) time_elapsed: Option<Duration>,
    #[prost(uint64, tag = "3")]
    pub(crate) allowed: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) denied: u64,
}

/// The attributes that a bucket is counted by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub(crate) struct BucketId {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) attributes: BTreeMap<String, String>,
}

/// `RateLimitQuotaResponse`: actions that Envoy applies in their order.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QuotaResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) actions: Vec<BucketAction>,
}

/// An action for one bucket.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub(crate) id: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2, 3")]
    pub(crate) action: Option<Action>,
}

/// The variants of a [`BucketAction`].
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Action {
    #[prost(message, tag = "2")]
    Assign(Assignment),
    /// Envoy forgets the bucket.
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

/// `QuotaAssignmentAction`: replaces the assignment of the bucket.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Assignment {
    /// Starts when Envoy receives it.
    #[prost(message, optional, tag = "2")]
    pub(crate) time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) strategy: Option<Strategy>,
}

/// `AbandonAction`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Abandon {}

/// `envoy.type.v3.RateLimitStrategy`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Strategy {
    #[prost(oneof = "StrategyKind", tags = "1, 3")]
    pub(crate) kind: Option<StrategyKind>,
}

/// The variants of a [`Strategy`].
#[derive(Clone, Copy, PartialEq, Oneof)]
pub(crate) enum StrategyKind {
    #[prost(enumeration = "BlanketRule", tag = "1")]
    Blanket(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// One answer for all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum BlanketRule {
    AllowAll = 0,
    DenyAll = 1,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(crate) max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) fill_interval: Option<Duration>,
}

/// The refill of a bucket that is not refilled: one token a year, the slowest that Envoy accepts.
const REFILL_SECONDS: i64 = 31_536_000;

impl BucketAction {
    /// Returns the actions that replace the tokens of a bucket. Without the denial in between, Envoy would keep the
    /// fraction of tokens that is left of the previous assignment.
    pub(crate) fn tokens(id: &BucketId, tokens: u32, seconds: i64) -> [Self; 2] {
        let bucket = TokenBucket {
            max_tokens: tokens,
            tokens_per_fill: Some(1),
            fill_interval: Some(Duration { seconds: REFILL_SECONDS, nanos: 0 }),
        };
        let fresh = Self::assign(id, StrategyKind::TokenBucket(bucket), seconds);
        [Self::blanket(id, BlanketRule::DenyAll, seconds), fresh]
    }

    /// Returns an action that allows or denies all requests of a bucket.
    pub(crate) fn blanket(id: &BucketId, rule: BlanketRule, seconds: i64) -> Self {
        Self::assign(id, StrategyKind::Blanket(rule.into()), seconds)
    }

    /// Returns an action that removes a bucket from Envoy.
    pub(crate) fn abandon(id: &BucketId) -> Self {
        Self { id: Some(id.clone()), action: Some(Action::Abandon(Abandon {})) }
    }

    fn assign(id: &BucketId, kind: StrategyKind, seconds: i64) -> Self {
        let assignment = Assignment {
            time_to_live: Some(Duration { seconds, nanos: 0 }),
            strategy: Some(Strategy { kind: Some(kind) }),
        };
        Self { id: Some(id.clone()), action: Some(Action::Assign(assignment)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> BucketId {
        BucketId { attributes: BTreeMap::from([("k".to_owned(), "v".to_owned())]) }
    }

    #[test]
    fn reports_are_decoded() {
        let bytes: &[u8] = &[
            0x0a, 0x01, b'd', // domain
            0x12, 0x12, // a bucket
            0x0a, 0x08, 0x0a, 0x06, 0x0a, 0x01, b'k', 0x12, 0x01, b'v', // its id
            0x12, 0x02, 0x08, 0x04, // 4 s
            0x18, 0x07, // 7 allowed
            0x20, 0x02, // 2 denied
        ];
        let time_elapsed = Some(Duration { seconds: 4, nanos: 0 });
        let usage = BucketUsage { id: Some(id()), time_elapsed, allowed: 7, denied: 2 };
        let expected = UsageReports { domain: "d".into(), usages: vec![usage] };
        assert_eq!(UsageReports::decode(bytes).unwrap(), expected);
    }

    #[test]
    fn tokens_follow_a_denial() {
        let response = QuotaResponse { actions: BucketAction::tokens(&id(), 300, 9).into() };
        let id = [0x0a, 0x08, 0x0a, 0x06, 0x0a, 0x01, b'k', 0x12, 0x01, b'v'];
        let denial = [0x12, 0x08, 0x12, 0x02, 0x08, 0x09, 0x1a, 0x02, 0x08, 0x01];
        let tokens = [
            0x12, 0x16, 0x12, 0x02, 0x08, 0x09, // life
            0x1a, 0x10, 0x1a, 0x0e, 0x08, 0xac, 0x02, // 300 tokens
            0x12, 0x02, 0x08, 0x01, // one for each fill
            0x1a, 0x05, 0x08, 0x80, 0xe7, 0x84, 0x0f, // a fill each year
        ];
        let mut expected = vec![0x0a, 0x14];
        expected.extend([&id[..], &denial].concat());
        expected.extend([0x0a, 0x22]);
        expected.extend([&id[..], &tokens].concat());
        assert_eq!(response.encode_to_vec(), expected);
    }

    #[test]
    fn a_bucket_is_abandoned_with_an_empty_action() {
        let action = BucketAction::abandon(&id()).encode_to_vec();
        assert_eq!(action[10..], [0x1a, 0x00]);
    }
}
