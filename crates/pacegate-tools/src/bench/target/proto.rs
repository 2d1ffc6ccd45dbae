//! The messages of `envoy.service.ratelimit.v3` that a client needs, with the field numbers of Envoy's API.

use bytes::Bytes;
use prost::{Enumeration, Message};

/// A check of one or more descriptors.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

/// A list of entries that is limited as one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<DescriptorEntry>,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// The decision.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(super) overall_code: i32,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}
