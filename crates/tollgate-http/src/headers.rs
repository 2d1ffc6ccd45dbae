//! What a client is told about its limit: `Retry-After`, `RateLimit`, `RateLimit-Policy` and `X-RateLimit-*`.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use tollgate::{Algorithm, Decision, Limit, Timestamp};

/// Which headers tell a client about its limit. `Retry-After` is on every denial that has an end, whatever is chosen
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// `RateLimit` and `RateLimit-Policy`.
    pub standard: HeaderStyle,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`; `None` for none of them.
    pub legacy: Option<ResetStyle>,
}

/// Which draft of the standard headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// None of them.
    Off,
    /// As in drafts 8 to 11: `RateLimit: "api";r=12;t=3`.
    Draft8,
}

/// What the number in `X-RateLimit-Reset` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetStyle {
    /// Seconds since 1970.
    Epoch,
    /// Seconds from now.
    Delta,
}

/// Header values one after the other, so that they are one allocation.
struct Sheet {
    text: Vec<u8>,
    values: SmallVec<[(&'static HeaderName, Range<usize>); 6]>,
}

static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static RETRY_AFTER: HeaderName = header::RETRY_AFTER;

/// The largest integer of a structured field.
const MOST: u64 = 999_999_999_999_999;

/// What all headers of a decision fit in, unless its numbers are very long.
const ROOM: usize = 160;

impl Headers {
    /// None but `Retry-After`.
    pub const OFF: Self = Self { standard: HeaderStyle::Off, legacy: None };

    /// Puts what a decision says into the headers of a response, in place of what was there under the same names.
    ///
    /// `now` is an instant before the decision, by the clock that clients go by: what ends with a second is then not
    /// rounded up to the next.
    pub fn write(&self, decision: &Decision, now: Timestamp, headers: &mut HeaderMap) {
        let _ = self.write_after(Vec::with_capacity(ROOM), decision, now, headers);
    }

    /// [`Headers::write`] for a response whose body is already made: the values follow it in the same buffer, and the
    /// body is returned.
    pub fn write_after(
        &self,
        body: Vec<u8>,
        decision: &Decision,
        now: Timestamp,
        headers: &mut HeaderMap,
    ) -> Bytes {
        headers.reserve(6);
        self.each_after(body, decision, now, |name, value| {
            if let Ok(value) = HeaderValue::from_maybe_shared(value) {
                headers.insert(name, value);
            }
        })
    }

    /// [`Headers::write_after`] for frameworks with types of their own: hands each header to `put`.
    pub(crate) fn each_after(
        &self,
        body: Vec<u8>,
        decision: &Decision,
        now: Timestamp,
        mut put: impl FnMut(&'static HeaderName, Bytes),
    ) -> Bytes {
        let length = body.len();
        let mut sheet = Sheet { text: body, values: SmallVec::new() };
        self.fill(&mut sheet, decision, now);
        let text = Bytes::from(sheet.text);
        for (name, range) in sheet.values {
            put(name, text.slice(range));
        }
        text.slice(..length)
    }

    /// Hands each header of a decision to `put`.
    pub(crate) fn each(
        &self,
        decision: &Decision,
        now: Timestamp,
        put: impl FnMut(&'static HeaderName, Bytes),
    ) {
        let _ = self.each_after(Vec::with_capacity(ROOM), decision, now, put);
    }

    /// Whether a response that has headers of these names already says what these would.
    pub(crate) fn are_in(&self, has: impl Fn(&HeaderName) -> bool) -> bool {
        let standard = self.standard == HeaderStyle::Draft8 && has(&RATE_LIMIT);
        standard || self.legacy.is_some() && has(&X_LIMIT)
    }

    fn fill(&self, sheet: &mut Sheet, decision: &Decision, now: Timestamp) {
        if let Some(wait) = decision.retry_after_secs() {
            sheet.header(&RETRY_AFTER, |out| write_number(out, wait.min(MOST)));
        }
        let (Some(policy), Some(limit)) = (decision.policy(), decision.limit()) else { return };
        let policy = policy.as_str();
        if self.standard == HeaderStyle::Draft8 {
            sheet.header(&RATE_LIMIT, |out| write_state(out, policy, decision));
            sheet.header(&RATE_LIMIT_POLICY, |out| write_policy(out, policy, &limit));
        }
        if let Some(style) = self.legacy {
            let reset = match style {
                ResetStyle::Epoch => now.after(decision.reset_after()).as_secs_ceil(),
                ResetStyle::Delta => reset_seconds(decision),
            };
            sheet.header(&X_LIMIT, |out| write_number(out, limit.capacity().min(MOST)));
            sheet.header(&X_REMAINING, |out| write_number(out, decision.remaining().min(MOST)));
            sheet.header(&X_RESET, |out| write_number(out, reset.min(MOST)));
        }
    }
}

/// All of them, with the reset in seconds since 1970.
impl Default for Headers {
    fn default() -> Self {
        Self { standard: HeaderStyle::Draft8, legacy: Some(ResetStyle::Epoch) }
    }
}

impl Sheet {
    fn header(&mut self, name: &'static HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        write(&mut self.text);
        self.values.push((name, start..self.text.len()));
    }
}

/// Until nothing is used any more, rounded up.
pub fn reset_seconds(decision: &Decision) -> u64 {
    let time = decision.reset_after();
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Adds a number in decimal digits.
pub fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

/// `"api";r=12;t=3`: what remains, and in how many seconds there is more.
fn write_state(out: &mut Vec<u8>, policy: &str, decision: &Decision) {
    write_name(out, policy);
    out.extend_from_slice(b";r=");
    write_number(out, decision.remaining().min(MOST));
    let time = match decision.is_allowed() {
        true => Some(reset_seconds(decision)),
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
        write_number(out, period.as_secs().min(MOST));
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
