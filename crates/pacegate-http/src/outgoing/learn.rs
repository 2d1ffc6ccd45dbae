//! Reads from a response when the next call is allowed.

use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode, header};
use pacegate::Timestamp;

use super::date;

/// Headers for remaining and reset, in order of precedence.
static PAIRS: [(HeaderName, HeaderName); 3] = [
    (HeaderName::from_static("ratelimit-remaining"), HeaderName::from_static("ratelimit-reset")),
    (
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset"),
    ),
    (
        HeaderName::from_static("x-rate-limit-remaining"),
        HeaderName::from_static("x-rate-limit-reset"),
    ),
];

static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Longer pauses are shortened to this.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// A reset from `EPOCH_SECONDS` on is an instant in seconds, from `EPOCH_MILLIS` on in milliseconds. A smaller one is a
/// time from now.
const EPOCH_SECONDS: u64 = 1_000_000_000;
const EPOCH_MILLIS: u64 = 100_000_000_000;

/// Returns the pause that a response asks for, at most a day. `None` if it asks for none or cannot be parsed.
///
/// Headers in order of precedence:
/// 1. `Retry-After` in seconds or as a date, on a status from 400 on.
/// 2. `RateLimit`, if nothing remains: drafts from 8 on (`"api";r=0;t=5`; the longest of several policies), or draft 7
///    (`limit=10, remaining=0, reset=5`).
/// 3. Without `RateLimit`: `RateLimit-Remaining` and `-Reset` (earlier drafts), or `X-RateLimit-Remaining` and
///    `-Reset`, where a reset above 10^9 is an instant. These name the time of a full reset, not of the next unit.
///
/// Instants are compared with the `Date` of the response if it has one, else with `now`. So a local clock that is slow
/// does not turn a pause of seconds into hours.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, StatusCode};
/// use pacegate::Timestamp;
/// use pacegate_http::outgoing::requested_pause;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "30".parse()?);
/// let pause = requested_pause(StatusCode::TOO_MANY_REQUESTS, &headers, Timestamp::EPOCH);
/// assert_eq!(pause, Some(Duration::from_secs(30)));
/// assert_eq!(requested_pause(StatusCode::OK, &headers, Timestamp::EPOCH), None);
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
pub fn requested_pause(
    status: StatusCode,
    headers: &HeaderMap,
    now: Timestamp,
) -> Option<Duration> {
    let now = text(headers, &header::DATE).and_then(date::parse).unwrap_or(now);
    let refused = status.is_client_error() || status.is_server_error();
    let retry = text(headers, &header::RETRY_AFTER).filter(|_| refused);
    let wait = retry.and_then(|text| retry_after(text, now)).or_else(|| {
        match headers.contains_key(&RATE_LIMIT) {
            true => lines(headers, &RATE_LIMIT).filter_map(rate_limit).max(),
            false => PAIRS.iter().find_map(|pair| remaining_and_reset(headers, pair, now)),
        }
    })?;
    (!wait.is_zero()).then(|| wait.min(MAX_PAUSE))
}

fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Some(seconds) = rounded_up(text) {
        return Some(Duration::from_secs(seconds));
    }
    let until = date::parse(text)?;
    Some(Duration::from_micros(until.micros_since(now)))
}

/// Parses both formats of `RateLimit`.
fn rate_limit(text: &str) -> Option<Duration> {
    let member = |name: &str| text.split(',').find_map(|member| parameter(member, name));
    if let Some(remaining) = member("remaining") {
        return (remaining == 0).then(|| member("reset").map(Duration::from_secs))?;
    }
    let waits = text.split(',').filter_map(|item| {
        let value = |name: &str| item.split(';').skip(1).find_map(|pair| parameter(pair, name));
        (value("r")? == 0).then(|| value("t"))?
    });
    waits.max().map(Duration::from_secs)
}

/// Returns the number in `name=number`.
fn parameter(pair: &str, name: &str) -> Option<u64> {
    integer(pair.trim().strip_prefix(name)?.strip_prefix('=')?)
}

fn remaining_and_reset(
    headers: &HeaderMap,
    (remaining, reset): &(HeaderName, HeaderName),
    now: Timestamp,
) -> Option<Duration> {
    // Some services report negative numbers.
    let remaining = text(headers, remaining)?;
    if integer(remaining.strip_prefix('-').map_or(remaining, |_| "0"))? > 0 {
        return None;
    }
    let reset = rounded_up(text(headers, reset)?)?;
    let since_now = |until: Timestamp| Duration::from_micros(until.micros_since(now));
    Some(match reset {
        EPOCH_MILLIS.. => since_now(Timestamp::from_micros(reset.saturating_mul(1_000))),
        EPOCH_SECONDS.. => since_now(Timestamp::from_secs(reset)),
        seconds => Duration::from_secs(seconds),
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    lines(headers, name).next()
}

fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|line| line.to_str().ok().map(str::trim))
}

/// Parses a number of seconds, and rounds fractions up.
fn rounded_up(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let begun = fraction.bytes().any(|digit| digit != b'0');
    let fits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| Some(integer(whole)?.saturating_add(u64::from(begun))))?
}

/// Parses the first number of values such as `100, 100;w=60`.
fn integer(text: &str) -> Option<u64> {
    let number = text.split([',', ';']).next()?.trim();
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn every_generation_is_understood() {
        for (status, lines, seconds) in [
            (429, "retry-after: 7", 7),
            (503, "retry-after: 7", 7),
            (429, "retry-after: Tue, 14 Nov 2023 22:13:30 GMT", 10),
            (429, "retry-after: Tue, 14 Nov 2023 22:13:10 GMT", 0),
            (429, "retry-after: 0", 0),
            (429, "retry-after: soon", 0),
            (429, "retry-after: -1", 0),
            (429, "retry-after: 99999999999999999999", 0),
            (429, "retry-after: 9999999", 86_400),
            (429, "retry-after: 1.25", 2),
            (429, "retry-after: 7.", 7),
            (429, "retry-after: 1.x", 0),
            (
                429,
                "retry-after: Tue, 14 Nov 2023 22:13:30 GMT|date: Tue, 14 Nov 2023 22:13:26 GMT",
                4,
            ),
            (429, "retry-after: Tue, 14 Nov 2023 22:13:30 GMT|date: now", 10),
            (301, "retry-after: 7", 0),
            (200, "ratelimit: \"api\";r=0;t=5", 5),
            (200, "ratelimit: \"api\";r=1;t=5", 0),
            (200, "ratelimit: \"api\";t=5;r=0", 5),
            (200, "ratelimit: \"api\";r=0", 0),
            (200, "ratelimit: \"a\";r=0;t=5, \"b\";r=0;t=9, \"c\";r=1;t=60", 9),
            (200, "ratelimit: \"a\";r=0;t=5;pk=:YQ==:", 5),
            (200, "ratelimit: api;r=0;t=5", 5),
            (200, "ratelimit: api; r=0; t=5", 5),
            (200, "ratelimit: \"a\";r=0;t=5|ratelimit: \"b\";r=0;t=9", 9),
            (200, "ratelimit: \"a\";r=9;t=5|ratelimit: \"b\";r=0;t=9", 9),
            (200, "ratelimit: limit=10, remaining=0, reset=6", 6),
            (200, "ratelimit: limit=10, remaining=1, reset=6", 0),
            (200, "ratelimit-remaining: 0|ratelimit-reset: 8", 8),
            (200, "ratelimit-limit: 10|ratelimit-remaining: 3|ratelimit-reset: 8", 0),
            (200, "x-ratelimit-remaining: 0|x-ratelimit-reset: 8", 8),
            (200, "x-ratelimit-remaining: 0|x-ratelimit-reset: 1700000012", 12),
            (200, "x-ratelimit-remaining: 0|x-ratelimit-reset: 1700000011.25", 12),
            (200, "x-ratelimit-remaining: 0|x-ratelimit-reset: 1700000012000", 12),
            (200, "x-ratelimit-remaining: 0|x-ratelimit-reset: 1600000000", 0),
            (200, "x-ratelimit-remaining: -3|x-ratelimit-reset: 8", 8),
            (
                200,
                "x-ratelimit-remaining: 0|x-ratelimit-reset: 1600000009\
                 |date: Sun, 13 Sep 2020 12:26:40 GMT",
                9,
            ),
            (200, "x-rate-limit-remaining: 0|x-rate-limit-reset: 1700000003", 3),
            (200, "x-ratelimit-remaining: 0", 0),
            (200, "x-ratelimit-remaining: none|x-ratelimit-reset: 8", 0),
            (429, "retry-after: 2|ratelimit: \"api\";r=0;t=5", 2),
            (200, "ratelimit: \"api\";r=0|x-ratelimit-remaining: 0|x-ratelimit-reset: 8", 0),
            (200, "ratelimit: \"api\";r=0;t=1|x-ratelimit-remaining: 0|x-ratelimit-reset: 8", 1),
            (429, "retry-after: soon|ratelimit: \"api\";r=0;t=5", 5),
            (200, "", 0),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines.split('|').filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(": ").unwrap();
                headers.append(HeaderName::from_static(name), value.parse().unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            let wait = requested_pause(status, &headers, Timestamp::from_secs(NOW));
            let expected = (seconds > 0).then(|| Duration::from_secs(seconds));
            assert_eq!(wait, expected, "{status} {lines}");
        }
    }
}
