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

/// Defines a constructor for each kind of problem: its status, its type and title, and its detail, if that is fixed.
macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $status:ident, $type:literal, $title:literal $(, $detail:expr)?;)*) => {
        impl ProblemDetails {
            $(problems!(@constructor $(#[$doc])* $name, $status, $type, $title $(, $detail)?);)*
        }
    };
    (@constructor $(#[$doc:meta])* $name:ident, $status:ident, $type:literal, $title:literal, $detail:expr) => {
        $(#[$doc])*
        pub(super) fn $name() -> Self {
            Self::new(StatusCode::$status, $type, $title, $detail)
        }
    };
    (@constructor $(#[$doc:meta])* $name:ident, $status:ident, $type:literal, $title:literal) => {
        $(#[$doc])*
        pub(super) fn $name(detail: impl Into<String>) -> Self {
            Self::new(StatusCode::$status, $type, $title, detail)
        }
    };
}

problems! {
    /// An invalid body or query.
    request: BAD_REQUEST, "request", "Invalid request";
    /// An invalid limit.
    limit: BAD_REQUEST, "limit", "Invalid limit";
    /// A request that exceeds a configured bound.
    bounds: BAD_REQUEST, "bounds", "Bound exceeded";
    cost: BAD_REQUEST, "cost", "The cost exceeds a limit";
    unsupported: BAD_REQUEST, "unsupported", "Unsupported by the store";
    unauthorized: UNAUTHORIZED, "unauthorized", "Missing or unknown API key",
        "send `Authorization: Bearer KEY` with an API key of this server";
    forbidden: FORBIDDEN, "forbidden", "The API key does not permit this";
    /// A request with inline limits and an API key that does not allow them.
    inline: FORBIDDEN, "inline", "The API key does not allow inline limits", INLINE_DENIED;
    /// A host name that an attacker may have pointed at this server.
    host: FORBIDDEN, "host", "Unknown host",
        "the `Host` is unknown: use `localhost` or an address of this server, add the name to `listen.hosts`, or \
         configure `keys`";
    /// A request without exactly one valid host.
    bad_host: BAD_REQUEST, "host", "Invalid host";
    /// A request from a page of another site.
    cross_site: FORBIDDEN, "cross-site", "Cross-site request",
        "pages of other sites may send requests only if API keys are configured: use the dashboard or another client, \
         or configure `keys`";
    unknown_policy: BAD_REQUEST, "request", "Invalid request",
        "unknown policy: GET /v1/policies lists the policies";
    too_many_blocks: CONFLICT, "too-many-blocks", "Too many blocks";
    not_found: NOT_FOUND, "not-found", "Not found", "unknown path: GET /openapi.json lists the paths";
    method: METHOD_NOT_ALLOWED, "method", "Method not allowed",
        "the `Allow` header lists the methods of this path";
    slow: REQUEST_TIMEOUT, "slow", "Request timeout", "timed out while reading the body";
    too_large_body: PAYLOAD_TOO_LARGE, "too-large", "Body too large";
    content_type: UNSUPPORTED_MEDIA_TYPE, "content-type", "Content-Type must be application/json",
        "send the body with `Content-Type: application/json`";
    permit_lost: CONFLICT, "permit-lost", "Permit expired",
        "the permit has expired or was released, and another client may hold its units: acquire a new permit";
    reload_failed: UNPROCESSABLE_ENTITY, "reload", "Reload failed; keeping the current configuration";
    /// A connection with too many unread responses and requests in flight.
    busy: SERVICE_UNAVAILABLE, "busy", "Too many requests in flight on this connection",
        "read the responses on this connection, or send fewer requests at once";
    draining: SERVICE_UNAVAILABLE, "draining", "Shutting down",
        "the server is shutting down: use another instance";
    /// A failure of the server or its store. Requests alone do not cause it.
    unavailable: SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable";
}

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

    pub(super) fn too_many_attributes(bounds: &Bounds) -> Self {
        Self::bounds(format!("more than {} attributes", bounds.attributes))
    }

    pub(super) fn too_large(max: usize) -> Self {
        Self::too_large_body(format!("the body exceeds {max} bytes"))
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
        Self::cost(error.to_string())
    }
}

impl From<StoreError> for ProblemDetails {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unsupported(_) => Self::unsupported(error.to_string()),
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
            EnvoyError::NoConfiguration => Self::unavailable(error.to_string()),
            other => Self::request(other.to_string()),
        }
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        self.into_http().map(axum::body::Body::new)
    }
}
