//! Converts between the `http` crate and the older version of it that actix-web uses.

use actix_web::{
    HttpResponse,
    http::{
        StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use http::Response;
use pacegate_http::{IntoDenial, Refusal};

use crate::Incoming;

impl IntoDenial<Incoming> for HttpResponse {
    type Response = Self;

    fn into_denial(self, _: &Refusal) -> Self {
        self
    }
}

impl IntoDenial<Incoming> for Response<Bytes> {
    type Response = HttpResponse;

    fn into_denial(self, _: &Refusal) -> HttpResponse {
        let (head, body) = self.into_parts();
        let status = StatusCode::from_u16(head.status.as_u16());
        let mut built = HttpResponse::new(status.unwrap_or(StatusCode::TOO_MANY_REQUESTS));
        for (name, value) in &head.headers {
            let value = HeaderValue::from_bytes(value.as_bytes());
            if let (Some(name), Ok(value)) = (known(name), value) {
                built.headers_mut().append(name, value);
            }
        }
        built.set_body(body).map_into_boxed_body()
    }
}

/// Sets a rate limit header of a response.
pub(crate) fn insert(headers: &mut HeaderMap, name: &http::HeaderName, value: Bytes) {
    if let (Some(name), Ok(value)) = (known(name), HeaderValue::from_maybe_shared(value)) {
        headers.insert(name, value);
    }
}

/// Returns whether a response has a header.
pub(crate) fn contains(headers: &HeaderMap, name: &http::HeaderName) -> bool {
    known(name).is_some_and(|name| headers.contains_key(name))
}

/// Converts a name. Those of every response are constants, because a clone of a static name is an indirect call.
fn known(name: &http::HeaderName) -> Option<HeaderName> {
    Some(match name.as_str() {
        "ratelimit" => const { HeaderName::from_static("ratelimit") },
        "ratelimit-policy" => const { HeaderName::from_static("ratelimit-policy") },
        "x-ratelimit-limit" => const { HeaderName::from_static("x-ratelimit-limit") },
        "x-ratelimit-remaining" => const { HeaderName::from_static("x-ratelimit-remaining") },
        "x-ratelimit-reset" => const { HeaderName::from_static("x-ratelimit-reset") },
        other => HeaderName::from_bytes(other.as_bytes()).ok()?,
    })
}
