//! The response to a request that is not served.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::{
    Head, Question, Refusal, grpc,
    problem::{self, Details, Problem, QUOTA_EXCEEDED},
};

/// A problem, or over gRPC a status in a response of headers alone.
///
/// With `described`, a denial says whose limit it is: the key of this question.
pub(crate) fn response<H: Head>(
    refusal: &Refusal,
    head: &H,
    described: Option<&Question>,
) -> Response<Bytes> {
    if grpc::is_call(head) {
        return grpc::response(refusal);
    }
    let problem = problem_of(refusal, described);
    let mut response = Response::new(Bytes::from(problem.to_json()));
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, problem::CONTENT_TYPE);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn problem_of(refusal: &Refusal, described: Option<&Question>) -> Problem<'static> {
    let (status, kind) = match refusal {
        Refusal::Denied(_) => (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED),
        Refusal::Cost(_) => (StatusCode::BAD_REQUEST, "urn:pacegate:problem:cost"),
        Refusal::Missing(_) => (StatusCode::BAD_REQUEST, "urn:pacegate:problem:missing"),
        Refusal::Misconfigured(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "urn:pacegate:problem:misconfigured")
        }
        Refusal::Unsupported(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "urn:pacegate:problem:unsupported")
        }
    };
    let policy = match refusal {
        Refusal::Denied(decision) => decision.policy(),
        Refusal::Cost(error) => Some(error.policy),
        Refusal::Missing(_) | Refusal::Misconfigured(_) | Refusal::Unsupported(_) => None,
    };
    let details = described.and_then(|question| details(refusal, question));
    Problem { status, kind, title: refusal.title(), policy, details }
}

/// The most characters of a key that a denial repeats.
const MAX_KEY: usize = 256;

fn details(refusal: &Refusal, question: &Question) -> Option<Details> {
    let Refusal::Denied(decision) = refusal else { return None };
    let parts = question.key().iter().map(Option::unwrap_or_default).map(String::from_utf8_lossy);
    let key = parts.collect::<Vec<_>>().join(":").chars().take(MAX_KEY).collect();
    Some(Details { key, limit: decision.limit()?, retry_after: decision.retry_after_secs() })
}

impl Refusal {
    /// The problem, without any part of the request. For [`Refusal::Misconfigured`], the change that the program needs.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Denied(_) => "The quota is used up for now",
            Self::Cost(_) => "The request costs more than could ever be admitted",
            Self::Missing(_) => "The request lacks what its quota is counted by",
            Self::Misconfigured(hint) => hint,
            Self::Unsupported(_) => "The quota of the request cannot be counted here",
        }
    }
}
