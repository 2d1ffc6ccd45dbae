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

/// The header names of every response, so that they are parsed only once.
static NAMES: [HeaderName; 5] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

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

fn known(name: &http::HeaderName) -> Option<HeaderName> {
    let name = name.as_str();
    let known = NAMES.iter().find(|known| known.as_str() == name).cloned();
    known.or_else(|| HeaderName::from_bytes(name.as_bytes()).ok())
}
