//! What went wrong, as RFC 9457 has it.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use pacegate::{CheckError, CostError, StoreError};

use super::Answer;
use crate::{
    envoy::AskError,
    json::{write_number, write_text},
    service::{INLINE_DENIED, TooMuch},
};

/// Why there is no answer to what was asked. A denial is none of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    /// The last part of its type, which stays the same when the words change.
    kind: &'static str,
    title: &'static str,
    detail: String,
}

/// What the type of every problem begins with.
pub(super) const TYPE: &str = "urn:pacegate:problem:";

/// So much of somebody else's text is told back.
const MOST_DETAIL: usize = 400;

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: String) -> Self {
        Self { status, kind, title, detail }
    }

    /// A body or a query that is not what is wanted.
    pub(super) fn request(detail: impl Into<String>) -> Self {
        let title = "The request cannot be used";
        Self::new(StatusCode::BAD_REQUEST, "request", title, detail.into())
    }

    /// A text that is no limit.
    pub(super) fn limit(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "limit", "The limit cannot be used", detail.into())
    }

    /// More of something than the service takes.
    pub(super) fn bounds(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bounds", "More than is taken", detail.into())
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "send `Authorization: Bearer KEY` with an API key of this service";
        let title = "No API key that is known";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail.to_owned())
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        let title = "The API key is not for this";
        Self::new(StatusCode::FORBIDDEN, "forbidden", title, detail.into())
    }

    /// Limits that came with the request, and an API key that may not bring any.
    pub(super) fn inline() -> Self {
        let title = "The API key does not allow inline limits";
        Self::new(StatusCode::FORBIDDEN, "inline", title, INLINE_DENIED.to_owned())
    }

    /// A name that somebody else may have led here.
    pub(super) fn host() -> Self {
        let detail = "the `Host` is unknown: use `localhost` or an address of this server, add the \
                      name to `listen.hosts`, or configure `keys`";
        let title = "Unknown host";
        Self::new(StatusCode::FORBIDDEN, "host", title, detail.to_owned())
    }

    /// A request that does not name one host.
    pub(super) fn bad_host(detail: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "host", "Invalid host", detail.to_owned())
    }

    /// A page of somebody else asks.
    pub(super) fn cross_site() -> Self {
        let detail = "without API keys, pages of other sites may send nothing: use the dashboard or \
                      a program, or configure `keys`";
        let title = "Cross-site request";
        Self::new(StatusCode::FORBIDDEN, "cross-site", title, detail.to_owned())
    }

    /// A policy and key that lead nowhere.
    pub(super) fn unknown_policy() -> Self {
        let detail = "no policy in force has this name; GET /v1/policies lists them";
        let title = "The request cannot be used";
        Self::new(StatusCode::BAD_REQUEST, "request", title, detail.to_owned())
    }

    pub(super) fn too_many_blocks(detail: String) -> Self {
        Self::new(StatusCode::CONFLICT, "too-many-blocks", "No room for another block", detail)
    }

    pub(super) fn not_found() -> Self {
        let detail = "there is nothing at this path; GET /openapi.json lists what there is";
        Self::new(StatusCode::NOT_FOUND, "not-found", "No such path", detail.to_owned())
    }

    pub(super) fn method() -> Self {
        let detail = "the path is there for the methods in `Allow` only";
        let title = "No such method here";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method", title, detail.to_owned())
    }

    pub(super) fn slow() -> Self {
        let detail = "the body did not arrive in time";
        let title = "The request took too long";
        Self::new(StatusCode::REQUEST_TIMEOUT, "slow", title, detail.to_owned())
    }

    pub(super) fn too_large(most: usize) -> Self {
        let detail = format!("a body has at most {most} bytes");
        let title = "The body is too large";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", title, detail)
    }

    pub(super) fn content_type() -> Self {
        let detail = "send the body with `Content-Type: application/json`";
        let title = "The body is not said to be JSON";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type", title, detail.to_owned())
    }

    pub(super) fn permit_lost() -> Self {
        let detail =
            "the permit has ended, and somebody else may hold its place: acquire a new one";
        Self::new(StatusCode::CONFLICT, "permit-lost", "The permit is gone", detail.to_owned())
    }

    pub(super) fn reload_refused(complaint: String) -> Self {
        let title = "The configuration cannot be used; the last good one stays";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "reload", title, complaint)
    }

    /// A connection holds too many requests and answers.
    pub(super) fn busy() -> Self {
        let detail = "read the answers of this connection, or send fewer requests at once";
        let title = "Too much is in flight on this connection";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", title, detail.to_owned())
    }

    pub(super) fn draining() -> Self {
        let detail = "the service is going away: ask another";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Not ready", detail.to_owned())
    }

    /// What could not be measured. Nothing that a client sends leads here.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        let title = "The service cannot do this now";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail.into())
    }

    /// Adds it as a JSON object.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(TYPE.as_bytes());
        out.extend_from_slice(self.kind.as_bytes());
        out.extend_from_slice(b"\",\"title\":");
        write_text(out, self.title);
        out.extend_from_slice(b",\"status\":");
        write_number(out, self.status.as_u16().into());
        out.extend_from_slice(b",\"detail\":");
        let end =
            self.detail.char_indices().nth(MOST_DETAIL).map_or(self.detail.len(), |end| end.0);
        write_text(out, &self.detail[..end]);
        out.push(b'}');
    }

    pub(super) fn into_answer(self) -> Answer {
        let mut body = Vec::new();
        self.write(&mut body);
        let mut answer = Answer::new(Full::new(Bytes::from(body)));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
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
        answer
    }
}

impl From<TooMuch> for Problem {
    fn from(_: TooMuch) -> Self {
        Self::busy()
    }
}

impl From<CostError> for Problem {
    fn from(error: CostError) -> Self {
        let title = "The cost could never be admitted";
        Self::new(StatusCode::BAD_REQUEST, "cost", title, error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unsupported(_) => {
                let title = "The store cannot do this";
                Self::new(StatusCode::BAD_REQUEST, "unsupported", title, error.to_string())
            }
            StoreError::TimedOut => Self::unavailable("the store did not answer in time"),
            // What a server said is for the log.
            _ => Self::unavailable("the store cannot be used now"),
        }
    }
}

impl From<CheckError> for Problem {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Cost(error) => error.into(),
            CheckError::Store(error) => error.into(),
            other => Self::unavailable(other.to_string()),
        }
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Check(error) => error.into(),
            AskError::Store(error) => error.into(),
            other => Self::request(other.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.into_answer().map(axum::body::Body::new)
    }
}
