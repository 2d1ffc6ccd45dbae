//! The rate limit headers of a response: `Retry-After`, `RateLimit`, `RateLimit-Policy` and `X-RateLimit-*`.

use std::{mem, ops::Range, sync::OnceLock};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use pacegate::{Algorithm, Decision, Limit, PolicyName, Source, Timestamp};
use smallvec::SmallVec;

/// A choice of rate limit headers. Every denial with a `retry_after` also has the header `Retry-After`.
///
/// ```
/// use http::HeaderMap;
/// use pacegate::{Limit, Limiter, Timestamp};
/// use pacegate_http::Headers;
///
/// let decision = Limiter::memory(Limit::per_minute(10)).check("alice");
/// let mut headers = HeaderMap::new();
/// Headers::default().write(&decision, Timestamp::from_secs(1_767_225_600), &mut headers);
/// assert_eq!(headers["ratelimit-policy"], "\"default\";q=10;w=60");
/// assert_eq!(headers["x-ratelimit-remaining"], "9");
/// ```
///
/// A decision without a policy gets no headers. To change one setting, take the default and set the field:
///
/// ```
/// use pacegate_http::{Headers, ResetStyle};
///
/// let mut headers = Headers::default();
/// headers.legacy = Some(ResetStyle::Delta);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// `RateLimit` and `RateLimit-Policy`, or their predecessors.
    pub standard: HeaderStyle,
    /// `X-RateLimit-Limit` and `-Remaining`, and `-Reset` in this style; `None` for none of them.
    pub legacy: Option<ResetStyle>,
}

/// A version of the standard headers.
///
/// Use `Draft8` for new clients. Use `Draft6` for clients that already read `RateLimit-Remaining`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// None of them.
    Off,
    /// As in drafts 8 to 11: `RateLimit: "api";r=12;t=3`.
    Draft8,
    /// As in drafts up to 6: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, in seconds from now.
    Draft6,
}

/// The meaning of the number in `X-RateLimit-Reset`.
///
/// Both are common, and a client cannot tell them apart by the name of the header: keep what your clients expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetStyle {
    /// Seconds since 1970.
    Epoch,
    /// Seconds from now.
    Delta,
    /// No such header: only `X-RateLimit-Limit` and `-Remaining`, as tower_governor and actix-governor send them.
    Off,
}

/// Header values that are the same for all decisions of one limit.
struct LimitHeaders {
    policy: PolicyName,
    limit: Limit,
    /// `RateLimit-Policy`.
    standard: SharedText,
    /// `X-RateLimit-Limit`.
    legacy: SharedText,
    /// The beginning of `RateLimit`, up to the remaining units: `"api";r=`.
    state: Bytes,
}

/// A header value that is built once and shared.
pub(crate) struct SharedText {
    value: HeaderValue,
    bytes: Bytes,
}

/// The value of a header.
pub(crate) enum HeaderText<'a> {
    /// A shared value.
    Shared(&'a SharedText),
    /// A value of this decision.
    Fresh(Bytes),
}

/// The values of one decision, in one allocation.
struct Values {
    text: Bytes,
    /// `RateLimit`; empty if it is off.
    state: Piece,
    remaining: Piece,
    /// `RateLimit-Reset`; empty if it is off.
    standard_reset: Piece,
    /// `X-RateLimit-Reset`.
    legacy_reset: Option<Piece>,
}

/// A value of a decision.
enum Piece {
    /// Text that is the same in all processes.
    Static(&'static [u8]),
    /// A part of [`Values::text`].
    Part(Range<usize>),
}

/// Short text, built on the stack.
type Text = SmallVec<[u8; 64]>;

// Constants, because a clone of a static name is an indirect call.
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT6_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const DRAFT6_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const DRAFT6_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

static DRAFT8: [HeaderName; 2] = [RATE_LIMIT, RATE_LIMIT_POLICY];
static DRAFT6: [HeaderName; 3] = [DRAFT6_LIMIT, DRAFT6_REMAINING, DRAFT6_RESET];

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The assumed upper bound of a round trip to the store, in microseconds.
const MAX_ROUND_TRIP: u64 = 100_000;

const ZERO: HeaderValue = HeaderValue::from_static("0");

/// The numbers below 10,000 as four digits each, so that their values need no allocation.
static NUMBERS: [u8; 40_000] = numbers();

/// Shared header values of the first 64 limits, kept for the life of the process. Limits come from configuration;
/// values of further limits are built for each response.
static LIMIT_HEADERS: [OnceLock<LimitHeaders>; 64] = [const { OnceLock::new() }; 64];

impl Headers {
    /// None but `Retry-After`.
    pub const OFF: Self = Self { standard: HeaderStyle::Off, legacy: None };

    /// Sets the headers for a decision, and replaces existing headers of the same names.
    ///
    /// `X-RateLimit-Reset` in seconds since 1970 comes from the clock of the store, if that is on another machine.
    /// Otherwise it is `now` plus the time until the reset. Pass a time before the decision, so that a window that ends
    /// on a full second is not rounded up to the next one.
    pub fn write(&self, decision: &Decision, now: Timestamp, headers: &mut HeaderMap) {
        self.make_room(decision, headers);
        self.each(decision, now, |name, text| {
            headers.insert(name, text.into());
            true
        });
    }

    /// Passes each header of a decision to `put` until `put` returns `false`.
    pub(crate) fn each(
        &self,
        decision: &Decision,
        now: Timestamp,
        mut put: impl FnMut(HeaderName, HeaderText<'_>) -> bool,
    ) {
        if let Some(wait) = decision.retry_after_secs()
            && !put(header::RETRY_AFTER, HeaderText::Fresh(number(wait)))
        {
            return;
        }
        let (Some(policy), Some(limit)) = (decision.policy(), decision.limit()) else { return };
        let known = LimitHeaders::of(policy, limit);
        let fresh = known.is_none().then(|| LimitHeaders::new(policy, limit));
        let Some(known) = known.or(fresh.as_ref()) else { return };
        let mut values = Values::new(self, decision, known, now);
        let fresh = |piece| HeaderText::Fresh(values.get(piece));
        let continues = match self.standard {
            HeaderStyle::Off => true,
            HeaderStyle::Draft8 => {
                put(RATE_LIMIT, fresh(&values.state))
                    && put(RATE_LIMIT_POLICY, HeaderText::Shared(&known.standard))
            }
            HeaderStyle::Draft6 => {
                put(DRAFT6_LIMIT, HeaderText::Shared(&known.legacy))
                    && put(DRAFT6_REMAINING, fresh(&values.remaining))
                    && put(DRAFT6_RESET, fresh(&values.standard_reset))
            }
        };
        if continues
            && self.legacy.is_some()
            && put(X_LIMIT, HeaderText::Shared(&known.legacy))
            && put(X_REMAINING, fresh(&values.remaining))
            && let Some(reset) = values.take_legacy_reset()
        {
            put(X_RESET, HeaderText::Fresh(reset));
        }
    }

    /// Reserves capacity for the headers of a decision: no more, so that the map of a response with a few headers does
    /// not grow in vain, and no less, so that it does not grow twice.
    fn make_room(&self, decision: &Decision, headers: &mut HeaderMap) {
        if decision.policy().is_some() {
            let legacy = match self.legacy {
                None => 0,
                Some(ResetStyle::Off) => 2,
                Some(ResetStyle::Epoch | ResetStyle::Delta) => 3,
            };
            let wait = usize::from(!decision.is_allowed());
            headers.reserve(self.standard.names().len() + legacy + wait);
        }
    }

    /// Returns whether a response already has these headers.
    pub(crate) fn are_in(&self, has: impl Fn(&HeaderName) -> bool) -> bool {
        let standard = self.standard.names().first().is_some_and(&has);
        standard || self.legacy.is_some() && has(&X_LIMIT)
    }

    /// Like [`Headers::write`], but leaves the response unchanged if it already has these headers.
    pub(crate) fn add(&self, decision: &Decision, now: Timestamp, headers: &mut HeaderMap) {
        if !self.are_in(|name| headers.contains_key(name)) {
            self.write(decision, now, headers);
        }
    }
}

impl HeaderStyle {
    /// Returns its headers. The first one marks a response that already has them.
    fn names(self) -> &'static [HeaderName] {
        match self {
            Self::Off => &[],
            Self::Draft8 => &DRAFT8,
            Self::Draft6 => &DRAFT6,
        }
    }
}

impl Values {
    fn new(headers: &Headers, decision: &Decision, known: &LimitHeaders, now: Timestamp) -> Self {
        let mut text = Text::new();
        if headers.standard == HeaderStyle::Draft8 {
            text.extend_from_slice(&known.state);
        }
        let remaining = Piece::new(decision.remaining(), &mut text);
        let state = match headers.standard {
            HeaderStyle::Draft8 => end_state(&mut text, &remaining, decision),
            HeaderStyle::Draft6 | HeaderStyle::Off => Piece::Static(b""),
        };
        let mut piece = |number| Piece::new(number, &mut text);
        let standard_reset = match headers.standard {
            HeaderStyle::Draft6 => piece(reset_seconds(decision)),
            HeaderStyle::Draft8 | HeaderStyle::Off => Piece::Static(b""),
        };
        let legacy_reset = match headers.legacy {
            Some(ResetStyle::Epoch) => {
                Some(piece(reset_instant(decision, &known.limit, now).as_secs_ceil()))
            }
            Some(ResetStyle::Delta) => Some(piece(reset_seconds(decision))),
            Some(ResetStyle::Off) | None => None,
        };
        let text = if text.is_empty() { Bytes::new() } else { Bytes::from_owner(text) };
        Self { text, state, remaining, standard_reset, legacy_reset }
    }

    fn get(&self, piece: &Piece) -> Bytes {
        match piece {
            Piece::Static(text) => Bytes::from_static(text),
            Piece::Part(range) => self.text.slice(range.clone()),
        }
    }

    /// Returns the last value, which takes the text: a slice would be counted as another reference.
    fn take_legacy_reset(&mut self) -> Option<Bytes> {
        Some(match self.legacy_reset.take()? {
            Piece::Static(text) => Bytes::from_static(text),
            Piece::Part(range) => {
                let mut text = mem::take(&mut self.text);
                text.truncate(range.end);
                text.advance(range.start);
                text
            }
        })
    }
}

impl Piece {
    /// Returns a number, capped at the largest integer of a structured field. Appends it to `text` if it is large.
    fn new(number: u64, text: &mut Text) -> Self {
        let number = number.min(MAX_INTEGER);
        if let Some(known) = small_number(number) {
            return Self::Static(known);
        }
        let start = text.len();
        write_integer(text, number);
        Self::Part(start..text.len())
    }
}

impl HeaderText<'_> {
    /// Returns the value as shared bytes, without a copy.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Shared(shared) => shared.bytes.clone(),
            Self::Fresh(bytes) => bytes,
        }
    }
}

impl From<HeaderText<'_>> for HeaderValue {
    fn from(text: HeaderText<'_>) -> Self {
        match text {
            HeaderText::Shared(shared) => shared.value.clone(),
            HeaderText::Fresh(bytes) => value(bytes),
        }
    }
}

impl SharedText {
    fn new(bytes: Bytes) -> Self {
        Self { value: value(bytes.clone()), bytes }
    }

    /// Leaks the text, so that a clone of it needs no reference count.
    fn lasting(self) -> Self {
        let text: &'static [u8] = Box::leak((*self.bytes).into());
        Self::new(Bytes::from_static(text))
    }
}

impl LimitHeaders {
    /// Returns the shared values of a limit, and creates them if there is room.
    fn of(policy: PolicyName, limit: Limit) -> Option<&'static Self> {
        let name = policy.as_str().as_ptr().addr() >> 3;
        let mixed = name as u64 ^ limit.amount() ^ limit.period().as_secs();
        let first = usize::try_from(mixed % LIMIT_HEADERS.len() as u64).unwrap_or(0);
        [first, first ^ 1].into_iter().find_map(|place| {
            let known = LIMIT_HEADERS[place].get_or_init(|| Self::new(policy, limit).lasting());
            (known.policy == policy && known.limit == limit).then_some(known)
        })
    }

    fn new(policy: PolicyName, limit: Limit) -> Self {
        let mut text = Text::new();
        write_policy(&mut text, policy.as_str(), &limit);
        let standard = SharedText::new(Bytes::copy_from_slice(&text));
        text.clear();
        write_name(&mut text, policy.as_str());
        text.extend_from_slice(b";r=");
        let state = Bytes::copy_from_slice(&text);
        Self { policy, limit, standard, legacy: SharedText::new(number(limit.capacity())), state }
    }

    fn lasting(self) -> Self {
        Self { standard: self.standard.lasting(), legacy: self.legacy.lasting(), ..self }
    }
}

/// All headers, with `X-RateLimit-Reset` in seconds since 1970.
impl Default for Headers {
    fn default() -> Self {
        Self { standard: HeaderStyle::Draft8, legacy: Some(ResetStyle::Epoch) }
    }
}

/// Returns the instant at which the counter is empty: from the clock of the store if the decision has it, else `now`
/// plus the time until the reset.
///
/// The deny cache reports an upper bound, which is late by up to a round trip to the store. For a fixed window, it is
/// corrected to the end of the window; otherwise it would be rounded up to the next second and differ from the header
/// of the first denial.
fn reset_instant(decision: &Decision, limit: &Limit, now: Timestamp) -> Timestamp {
    if let Some(end) = decision.reset_at() {
        return end;
    }
    let end = now.after(decision.reset_after());
    let remembered = decision.source() == Source::DenyCache;
    if !remembered || limit.algorithm() != Algorithm::FixedWindow {
        return end;
    }
    match limit.window_at(end) {
        Some(next) if end.micros_since(next.start()) < MAX_ROUND_TRIP => next.start(),
        _ => end,
    }
}

/// Returns the seconds until the counter is empty, rounded up.
pub fn reset_seconds(decision: &Decision) -> u64 {
    let time = decision.reset_after();
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Returns the seconds until more units are available, rounded up.
fn more_seconds(decision: &Decision) -> Option<u64> {
    let time = decision.more_after()?;
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    // Never 0 for a denial, or if no units are left.
    let is_waited_for = !decision.is_allowed() || decision.remaining() == 0;
    Some(seconds.max(is_waited_for.into()))
}

/// Appends a number in decimal digits.
pub(crate) fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a number, capped at the largest integer of a structured field.
fn write_integer(out: &mut Text, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
}

/// Returns a number as text, capped at the largest integer of a structured field.
fn number(number: u64) -> Bytes {
    let number = number.min(MAX_INTEGER);
    match small_number(number) {
        Some(text) => Bytes::from_static(text),
        None => Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Returns the text of a number below 10,000.
fn small_number(number: u64) -> Option<&'static [u8]> {
    let end = 4 * usize::try_from(number).ok().filter(|number| *number < 10_000)? + 4;
    let digits = 1 + usize::from(number > 9) + usize::from(number > 99) + usize::from(number > 999);
    Some(&NUMBERS[end - digits..end])
}

/// Converts text to a header value. All texts of this module are valid.
fn value(text: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).unwrap_or(ZERO)
}

const fn numbers() -> [u8; 40_000] {
    let mut text = [b'0'; 40_000];
    let mut number = 0;
    while number < 10_000 {
        let (mut rest, mut place) = (number, 4 * number + 3);
        while rest > 0 {
            text[place] = b'0' + (rest % 10) as u8;
            rest /= 10;
            place -= 1;
        }
        number += 1;
    }
    text
}

/// Completes `"api";r=12;t=3`: the remaining units, and the seconds until more are available. The text already has the
/// remaining units if these are a part of it.
fn end_state(text: &mut Text, remaining: &Piece, decision: &Decision) -> Piece {
    if let Piece::Static(digits) = remaining {
        text.extend_from_slice(digits);
    }
    if let Some(time) = more_seconds(decision) {
        text.extend_from_slice(b";t=");
        write_integer(text, time);
    }
    Piece::Part(0..text.len())
}

/// Appends `"api";q=600;w=60`: the amount, and the period if it is in whole seconds.
fn write_policy(out: &mut Text, policy: &str, limit: &Limit) {
    write_name(out, policy);
    out.extend_from_slice(b";q=");
    write_integer(out, limit.amount());
    let period = limit.period();
    if limit.algorithm().holds_permits() {
        out.extend_from_slice(b";qu=\"concurrent-requests\"");
    } else if period.subsec_nanos() == 0 {
        out.extend_from_slice(b";w=");
        write_integer(out, period.as_secs());
    } else if period.subsec_nanos().is_multiple_of(1_000_000) {
        out.extend_from_slice(b";pacegate-ms=");
        write_integer(out, u64::try_from(period.as_millis()).unwrap_or(MAX_INTEGER));
    } else {
        out.extend_from_slice(b";pacegate-us=");
        write_integer(out, u64::try_from(period.as_micros()).unwrap_or(MAX_INTEGER));
    }
}

/// A policy's name needs no escaping in a structured field.
fn write_name(out: &mut Text, policy: &str) {
    out.push(b'"');
    out.extend_from_slice(policy.as_bytes());
    out.push(b'"');
}
