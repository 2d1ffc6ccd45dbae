//! Between the `http` of actix-web, which is an older one, and everybody else's.

use actix_web::{
    HttpResponse,
    http::{
        StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use http::Response;

/// A response of the shared part as one of actix-web.
pub(crate) fn response(response: Response<Bytes>) -> HttpResponse {
    let (head, body) = response.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16());
    let mut built = HttpResponse::new(status.unwrap_or(StatusCode::TOO_MANY_REQUESTS));
    for (name, value) in &head.headers {
        put(name, value, |name, value| built.headers_mut().append(name, value));
    }
    built.set_body(body).map_into_boxed_body()
}

/// Puts a header of the shared part among those of a response.
pub(crate) fn insert(headers: &mut HeaderMap, name: &http::HeaderName, value: &http::HeaderValue) {
    put(name, value, |name, value| drop(headers.insert(name, value)));
}

fn put(
    name: &http::HeaderName,
    value: &http::HeaderValue,
    put: impl FnOnce(HeaderName, HeaderValue),
) {
    if let Ok(name) = HeaderName::from_bytes(name.as_str().as_bytes())
        && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
    {
        put(name, value);
    }
}
