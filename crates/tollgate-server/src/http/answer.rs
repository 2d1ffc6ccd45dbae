//! Decisions as responses: a status, headers by the settings, and a body, all in one buffer.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;
use tollgate::{Algorithm, Decision, Limit, Timestamp};

use super::{Answer, Problem};
use crate::{
    config::{HeaderStyle, Headers, ResetStyle},
    json::{JsonDecision, write_number},
};

/// A decision that becomes a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) headers: Headers,
    /// Before it was decided: what ends with a second is then not rounded up to the next.
    pub(super) now: Timestamp,
}

/// Body and header values one after the other, so that they are one allocation.
struct Sheet {
    text: Vec<u8>,
    values: Vec<(&'static HeaderName, Range<usize>)>,
}

static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static RETRY_AFTER: HeaderName = header::RETRY_AFTER;

/// The largest integer of a structured field.
const MOST: u64 = 999_999_999_999_999;

impl Decided {
    /// 200 or 429, with the decision as JSON.
    pub(super) fn answer(&self, revision: u64) -> Answer {
        self.answer_with(|body| write_decision(body, self.decision, revision))
    }

    /// 200 or 429, with a body of JSON by `write`.
    pub(super) fn answer_with(&self, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let status = match self.decision.is_allowed() {
            true => StatusCode::OK,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut answer = self.respond(status, write);
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        answer
    }

    /// The headers on a response of this status, with nothing in it.
    pub(super) fn empty_answer(&self, status: StatusCode) -> Answer {
        self.respond(status, |_| {})
    }

    fn respond(&self, status: StatusCode, write: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let mut sheet = Sheet { text: Vec::with_capacity(512), values: Vec::with_capacity(6) };
        write(&mut sheet.text);
        let body = sheet.text.len();
        self.write_headers(&mut sheet);
        let text = Bytes::from(sheet.text);
        let mut answer = Answer::new(Full::new(text.slice(..body)));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.reserve(sheet.values.len() + 2);
        for (name, range) in sheet.values {
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(range)) {
                headers.insert(name, value);
            }
        }
        answer
    }

    fn write_headers(&self, sheet: &mut Sheet) {
        let Self { decision, headers, now } = self;
        if let Some(wait) = decision.retry_after_secs() {
            sheet.header(&RETRY_AFTER, |out| write_number(out, wait));
        }
        let (Some(policy), Some(limit)) = (decision.policy(), decision.limit()) else { return };
        let policy = policy.as_str();
        if headers.standard == HeaderStyle::Draft8 {
            sheet.header(&RATE_LIMIT, |out| write_state(out, policy, decision));
            sheet.header(&RATE_LIMIT_POLICY, |out| write_policy(out, policy, &limit));
        }
        if let Some(style) = headers.legacy {
            let reset = match style {
                ResetStyle::Epoch => now.after(decision.reset_after()).as_secs_ceil(),
                ResetStyle::Delta => seconds(decision),
            };
            sheet.header(&X_LIMIT, |out| write_number(out, limit.capacity()));
            sheet.header(&X_REMAINING, |out| write_number(out, decision.remaining()));
            sheet.header(&X_RESET, |out| write_number(out, reset));
        }
    }
}

impl Sheet {
    fn header(&mut self, name: &'static HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        write(&mut self.text);
        self.values.push((name, start..self.text.len()));
    }
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

/// `"api";r=12;t=3`: what remains, and in how many seconds there is more.
fn write_state(out: &mut Vec<u8>, policy: &str, decision: &Decision) {
    write_name(out, policy);
    out.extend_from_slice(b";r=");
    write_number(out, decision.remaining().min(MOST));
    let time = match decision.is_allowed() {
        true => Some(seconds(decision)),
        false => decision.retry_after_secs(),
    };
    if let Some(time) = time {
        out.extend_from_slice(b";t=");
        write_number(out, time.min(MOST));
    }
}

/// `"api";q=600;w=60`: how much in how many seconds, if they are whole.
fn write_policy(out: &mut Vec<u8>, policy: &str, limit: &Limit) {
    write_name(out, policy);
    out.extend_from_slice(b";q=");
    write_number(out, limit.amount().min(MOST));
    let period = limit.period();
    if limit.algorithm() == Algorithm::Concurrency {
        out.extend_from_slice(b";qu=\"concurrent-requests\"");
    } else if period.subsec_nanos() == 0 {
        out.extend_from_slice(b";w=");
        write_number(out, period.as_secs());
    } else {
        out.extend_from_slice(b";tollgate-ms=");
        write_number(out, u64::try_from(period.as_millis()).unwrap_or(MOST).min(MOST));
    }
}

/// A policy's name needs no escaping in a structured field.
fn write_name(out: &mut Vec<u8>, policy: &str) {
    out.push(b'"');
    out.extend_from_slice(policy.as_bytes());
    out.push(b'"');
}

/// Until nothing is used any more, rounded up.
pub(super) fn seconds(decision: &Decision) -> u64 {
    let time = decision.reset_after();
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
