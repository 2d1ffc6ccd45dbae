//! Errors as problem details (RFC 9457), and every mapping of an error to HTTP.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use pacegate::{CheckError, CostError, StoreError};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::HttpResponse;
use crate::{
    config::Bounds,
    envoy::EnvoyError,
    service::{INLINE_DENIED, TooMuch},
};

/// An error as in RFC 9457. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(super) struct ProblemDetails {
    /// `urn:pacegate:problem:` and a name that stays the same when texts change.
    #[serde(serialize_with = "with_prefix")]
    r#type: &'static str,
    /// Summary of the kind of problem.
    title: &'static str,
    /// HTTP status code.
    #[serde(serialize_with = "as_number")]
    #[schemars(with = "u16")]
    pub(super) status: StatusCode,
    /// The cause, and how to fix it.
    detail: String,
}

/// The number of characters of a detail, which may quote the request.
const MAX_DETAIL_CHARS: usize = 400;

impl ProblemDetails {
    fn new(
        status: StatusCode,
        r#type: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let mut detail: String = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(MAX_DETAIL_CHARS) {
            detail.truncate(end);
        }
        Self { r#type, title, status, detail }
    }

    /// An invalid body or query.
    pub(super) fn request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request", "Invalid request", detail)
    }

    /// An invalid limit.
    pub(super) fn limit(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "limit", "Invalid limit", detail)
    }

    /// A request that exceeds a configured bound.
    pub(super) fn bounds(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bounds", "Bound exceeded", detail)
    }

    pub(super) fn too_many_attributes(bounds: &Bounds) -> Self {
        Self::bounds(format!("more than {} attributes", bounds.attributes))
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "send `Authorization: Bearer KEY` with an API key of this server";
        let title = "Missing or unknown API key";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        let title = "The API key does not permit this";
        Self::new(StatusCode::FORBIDDEN, "forbidden", title, detail)
    }

    /// A request with inline limits and an API key that does not allow them.
    pub(super) fn inline() -> Self {
        let title = "The API key does not allow inline limits";
        Self::new(StatusCode::FORBIDDEN, "inline", title, INLINE_DENIED)
    }

    /// A host name that an attacker may have pointed at this server.
    pub(super) fn host() -> Self {
        let detail = "the `Host` is unknown: use `localhost` or an address of this server, add the \
                      name to `listen.hosts`, or configure `keys`";
        Self::new(StatusCode::FORBIDDEN, "host", "Unknown host", detail)
    }

    /// A request without exactly one valid host.
    pub(super) fn bad_host(detail: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "host", "Invalid host", detail)
    }

    /// A request from a page of another site.
    pub(super) fn cross_site() -> Self {
        let detail = "pages of other sites may send requests only if API keys are configured: use \
                      the dashboard or another client, or configure `keys`";
        Self::new(StatusCode::FORBIDDEN, "cross-site", "Cross-site request", detail)
    }

    pub(super) fn unknown_policy() -> Self {
        Self::request("unknown policy: GET /v1/policies lists the policies")
    }

    pub(super) fn too_many_blocks(detail: String) -> Self {
        Self::new(StatusCode::CONFLICT, "too-many-blocks", "Too many blocks", detail)
    }

    pub(super) fn not_found() -> Self {
        let detail = "unknown path: GET /openapi.json lists the paths";
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(super) fn method() -> Self {
        let detail = "the `Allow` header lists the methods of this path";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method", "Method not allowed", detail)
    }

    pub(super) fn slow() -> Self {
        let detail = "timed out while reading the body";
        Self::new(StatusCode::REQUEST_TIMEOUT, "slow", "Request timeout", detail)
    }

    pub(super) fn too_large(max: usize) -> Self {
        let detail = format!("the body exceeds {max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Body too large", detail)
    }

    pub(super) fn content_type() -> Self {
        let detail = "send the body with `Content-Type: application/json`";
        let title = "Content-Type must be application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type", title, detail)
    }

    pub(super) fn permit_lost() -> Self {
        let detail = "the permit has expired or was released, and another client may hold its \
                      units: acquire a new permit";
        Self::new(StatusCode::CONFLICT, "permit-lost", "Permit expired", detail)
    }

    pub(super) fn reload_failed(error: String) -> Self {
        let title = "Reload failed; keeping the current configuration";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "reload", title, error)
    }

    /// A connection with too many unread responses and requests in flight.
    pub(super) fn busy() -> Self {
        let detail = "read the responses on this connection, or send fewer requests at once";
        let title = "Too many requests in flight on this connection";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", title, detail)
    }

    pub(super) fn draining() -> Self {
        let detail = "the server is shutting down: use another instance";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Shutting down", detail)
    }

    /// A failure of the server or its store. Requests alone do not cause it.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        let title = "Temporarily unavailable";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail)
    }

    pub(super) fn into_http(self) -> HttpResponse {
        // Serializing strings and a number cannot fail.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = HttpResponse::new(Full::new(body.into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"pacegate\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

fn with_prefix<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("urn:pacegate:problem:{name}"))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn as_number<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl From<TooMuch> for ProblemDetails {
    fn from(_: TooMuch) -> Self {
        Self::busy()
    }
}

impl From<CostError> for ProblemDetails {
    fn from(error: CostError) -> Self {
        let title = "The cost exceeds a limit";
        Self::new(StatusCode::BAD_REQUEST, "cost", title, error.to_string())
    }
}

impl From<StoreError> for ProblemDetails {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unsupported(_) => {
                let title = "Unsupported by the store";
                Self::new(StatusCode::BAD_REQUEST, "unsupported", title, error.to_string())
            }
            StoreError::TimedOut => Self::unavailable("the store timed out"),
            // The log has the error of the store, which may name its address.
            _ => Self::unavailable("the store failed"),
        }
    }
}

impl From<CheckError> for ProblemDetails {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Cost(error) => error.into(),
            CheckError::Store(error) => error.into(),
            other => Self::unavailable(other.to_string()),
        }
    }
}

impl From<EnvoyError> for ProblemDetails {
    fn from(error: EnvoyError) -> Self {
        match error {
            EnvoyError::Check(error) => error.into(),
            EnvoyError::Store(error) => error.into(),
            other => Self::request(other.to_string()),
        }
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        self.into_http().map(axum::body::Body::new)
    }
}
