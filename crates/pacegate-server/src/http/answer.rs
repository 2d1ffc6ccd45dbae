//! Decisions as responses: a status, headers by the settings, and a body.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::Full;
use pacegate::{Decision, Request, Timestamp};
use pacegate_http::{
    Headers,
    problem::{QUOTA_EXCEEDED, write_window},
};
use serde::Serialize;

use super::{Answer, Problem};
use crate::{
    gate::Revision,
    json::{JsonDecision, write_number, write_text},
};

/// A decision that becomes a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) headers: Headers,
    /// Before it was decided: what ends with a second is then not rounded up to the next.
    pub(super) now: Timestamp,
}

impl Decided {
    /// 200 or 429, with the decision as JSON.
    pub(super) fn answer(&self, revision: u64) -> Answer {
        self.answer_with(|body| write_decision(body, self.decision, revision))
    }

    /// 200 or 429, with a body of JSON by `write`.
    pub(super) fn answer_with(&self, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        self.typed_answer("application/json", write)
    }

    /// 200 or 429, with a body of text by `write`.
    pub(super) fn text_answer(&self, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        self.typed_answer("text/plain;charset=UTF-8", write)
    }

    fn typed_answer(&self, kind: &'static str, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let status = match self.decision.is_allowed() {
            true => StatusCode::OK,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut answer = self.respond(status, write);
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        answer
    }

    /// A denial as problem details (RFC 9457) with the members of a decision and the key.
    pub(super) fn problem(&self, status: StatusCode, key: &str, revision: u64) -> Answer {
        let mut answer = self.respond(status, |body| {
            let title = b"\",\"title\":\"The quota is used up for now\",\"status\":";
            body.extend_from_slice(b"{\"type\":\"");
            body.extend_from_slice(QUOTA_EXCEEDED.as_bytes());
            body.extend_from_slice(title);
            write_number(body, status.as_u16().into());
            body.extend_from_slice(b",\"key\":");
            write_text(body, key);
            if let Some(limit) = self.decision.limit() {
                body.extend_from_slice(b",\"window\":");
                write_window(body, &limit);
            }
            body.push(b',');
            JsonDecision(self.decision).write_members(body);
            body.extend_from_slice(b",\"revision\":");
            write_number(body, revision);
            body.push(b'}');
        });
        let json = HeaderValue::from_static("application/problem+json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        answer
    }

    /// The headers on a response of this status, with nothing in it.
    pub(super) fn empty_answer(&self, status: StatusCode) -> Answer {
        self.respond(status, |_| {})
    }

    fn respond(&self, status: StatusCode, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let mut body = Vec::with_capacity(512);
        write(&mut body);
        let mut answer = Answer::new(Full::new(body.into()));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        // Those of here, and two that callers add.
        headers.reserve(8);
        self.headers.write(&self.decision, self.now, headers);
        degraded_if(self.decision.is_degraded(), answer)
    }
}

/// Marks a response that a failure mode decided, because the store did not answer.
pub(super) const DEGRADED: HeaderName = HeaderName::from_static("pacegate-degraded");

/// Adds [`DEGRADED`] to a response if it applies.
pub(super) fn degraded_if(is_degraded: bool, mut answer: Answer) -> Answer {
    if is_degraded {
        answer.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
    }
    answer
}

/// The most characters of a key that a denial repeats.
const MAX_KEY: usize = 256;

/// The values of a request that the policy of a decision counts by, separated by colons.
pub(super) fn key_of(revision: &Revision, decision: &Decision, request: &Request<'_>) -> String {
    let policy = decision.policy().and_then(|name| revision.engine.policies().get(name));
    let per = policy.map_or(&[][..], |policy| &policy.per);
    let values = per.iter().map(|name| request.attribute(name).unwrap_or_default());
    let key = values.map(String::from_utf8_lossy).collect::<Vec<_>>().join(":");
    key.chars().take(MAX_KEY).collect()
}

/// Adds a decision as an object.
pub(super) fn write_decision(out: &mut Vec<u8>, decision: Decision, revision: u64) {
    write_decision_and(out, decision, revision, |_| {});
}

/// Adds a decision as an object with further members, each after a comma.
pub(super) fn write_decision_and(
    out: &mut Vec<u8>,
    decision: Decision,
    revision: u64,
    more: impl FnOnce(&mut Vec<u8>),
) {
    out.push(b'{');
    JsonDecision(decision).write_members(out);
    out.extend_from_slice(b",\"revision\":");
    write_number(out, revision);
    more(out);
    out.push(b'}');
}

/// A response of JSON.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Result<Answer, Problem> {
    let body = serde_json::to_vec(body).map_err(|error| Problem::unavailable(error.to_string()))?;
    Ok(typed(status, "application/json", body.into()))
}

/// A response of this type, which caches do not keep.
pub(super) fn typed(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Answer::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    uncached(answer)
}

/// The same, not to be kept by caches.
pub(super) fn uncached(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
