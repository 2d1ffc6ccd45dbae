//! Rejections over gRPC: a response without a body, which gRPC calls trailers-only.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use pacegate::Decision;

use crate::{Head, Refusal, head::only};

static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A status, by its number in `google.rpc.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Internal = 13,
}

/// Returns whether a request is a gRPC call. A gRPC rejection has the status 200, so other requests must not get one:
/// caches would store an empty page. gRPC-Web has another format and is not supported.
pub(crate) fn is_call<H: Head>(head: &H) -> bool {
    let kind = only(head.lines(&header::CONTENT_TYPE));
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    head.method() == "POST" && matches!(rest, Some([] | [b'+' | b';', ..]))
}

pub(crate) fn response(refusal: &Refusal) -> Response<Bytes> {
    let code = match refusal {
        Refusal::Denied(_) => Code::ResourceExhausted,
        Refusal::Cost(_) | Refusal::Missing(_) => Code::InvalidArgument,
        Refusal::Misconfigured(_) | Refusal::Unsupported(_) => Code::Internal,
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(&STATUS, HeaderValue::from(code as u16));
    headers
        .extend(HeaderValue::from_str(refusal.title()).ok().map(|title| (MESSAGE.clone(), title)));
    if let Refusal::Denied(decision) = refusal {
        add_retry(headers, decision, refusal.title());
    }
    response
}

/// Adds the time to wait, in the two forms that gRPC clients read. Keeps existing headers.
pub(crate) fn add_retry(headers: &mut HeaderMap, decision: &Decision, message: &str) {
    let wait = decision.retry_after();
    let pushback = match wait {
        Some(wait) => {
            let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
            HeaderValue::from(u64::try_from(millis).unwrap_or(u64::MAX))
        }
        // A negative number means: do not retry.
        None => HeaderValue::from_static("-1"),
    };
    // Without padding, as gRPC prefers it.
    let details = STANDARD_NO_PAD.encode(status_message(decision, message));
    let details = HeaderValue::from_maybe_shared(Bytes::from(details));
    headers.entry(&PUSHBACK).or_insert(pushback);
    if let Ok(details) = details {
        headers.entry(&DETAILS).or_insert(details);
    }
}

/// `google.rpc.Status` with a `RetryInfo` and a `QuotaFailure`.
fn status_message(decision: &Decision, message: &str) -> Vec<u8> {
    let mut status = Vec::with_capacity(192);
    number(&mut status, 1, Code::ResourceExhausted as u64);
    bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = decision.retry_after() {
        let (mut delay, mut info) = (Vec::new(), Vec::new());
        number(&mut delay, 1, wait.as_secs());
        number(&mut delay, 2, wait.subsec_nanos().into());
        bytes(&mut info, 1, &delay);
        detail(&mut status, b"type.googleapis.com/google.rpc.RetryInfo", &info);
    }
    if let Some(policy) = decision.policy() {
        let (mut violation, mut failure) = (Vec::new(), Vec::new());
        bytes(&mut violation, 1, policy.as_str().as_bytes());
        bytes(&mut violation, 2, message.as_bytes());
        bytes(&mut failure, 1, &violation);
        detail(&mut status, b"type.googleapis.com/google.rpc.QuotaFailure", &failure);
    }
    status
}

/// Adds a `google.protobuf.Any` to a status.
fn detail(status: &mut Vec<u8>, kind: &[u8], value: &[u8]) {
    let mut any = Vec::with_capacity(kind.len() + value.len() + 8);
    bytes(&mut any, 1, kind);
    bytes(&mut any, 2, value);
    bytes(status, 3, &any);
}

/// A field of wire type 0; 0 is left out.
fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        out.push(field << 3);
        varint(out, value);
    }
}

/// A field of wire type 2.
fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
