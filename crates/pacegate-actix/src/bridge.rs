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

/// The names that are on every response, so that they need not be read anew for each.
static NAMES: [HeaderName; 5] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// A response of the shared part as one of actix-web.
pub(crate) fn response(response: Response<Bytes>) -> HttpResponse {
    let (head, body) = response.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16());
    let mut built = HttpResponse::new(status.unwrap_or(StatusCode::TOO_MANY_REQUESTS));
    for (name, value) in &head.headers {
        if let (Some(name), Ok(value)) = (known(name), HeaderValue::from_bytes(value.as_bytes())) {
            built.headers_mut().append(name, value);
        }
    }
    built.set_body(body).map_into_boxed_body()
}

/// Puts a header of the shared part among those of a response.
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
