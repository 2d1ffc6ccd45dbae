//! Envoy's call to decide a request.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use hyper::body::Incoming;
use prost::Message;

use super::{
    super::{
        decide::{EnvoyDecision, EnvoyError, decide, decide_before},
        proto::RateLimitRequest,
        response,
    },
    known,
    message::{framed, receive},
    reply::{CallResult, Failure, GrpcCode},
};
use crate::{
    active_config::{ActiveConfig, Revision},
    service::{INLINE_DENIED, Keys, Watch},
};

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

pub(super) async fn should_rate_limit(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> CallResult {
    let (mut head, body) = request.into_parts();
    // Checked before the body is read.
    known(Keys(&active.revision().settings.security.credentials), &head.headers)?;
    let deadline = head.headers.get(TIMEOUT).and_then(deadline);
    // Metadata may be large, and the message slow, so only the API key is kept.
    let key = head.headers.remove(header::AUTHORIZATION).map(|key| (header::AUTHORIZATION, key));
    head.headers = HeaderMap::from_iter(key);
    let bounds = active.revision().settings.bounds;
    let message = match receive(body, &bounds, bounds.request_bytes, watch.share()).await {
        Err(failure) if failure.code == GrpcCode::ResourceExhausted => {
            return Ok((deny_unread(active), false));
        }
        received => received?,
    };
    let request = RateLimitRequest::decode(message)
        .map_err(|_| Failure::new(GrpcCode::InvalidArgument, "invalid RateLimitRequest"))?;
    let revision = active.revision();
    let keys = Keys(&revision.settings.security.credentials);
    if keys.are_needed() {
        permit(&revision, &head.headers, &request)?;
    }
    let decided = match deadline {
        Some(deadline) => decide_before(&revision, &request, deadline).await,
        None => decide(&revision, &request).await,
    };
    let EnvoyDecision { response, is_degraded } =
        decided.map_err(|error| match revision.settings.ratelimit.is_some() {
            // As in envoyproxy/ratelimit.
            true => Failure { code: GrpcCode::Unknown, ..error.into() },
            false => error.into(),
        })?;
    Ok((framed(&response), is_degraded))
}

/// Returns the deadline of a call: three quarters of its `grpc-timeout`, which leaves time for the response. Invalid
/// values are ignored.
fn deadline(timeout: &HeaderValue) -> Option<tokio::time::Instant> {
    let timeout = parse_timeout(timeout.to_str().ok()?)?;
    tokio::time::Instant::now().checked_add(timeout * 3 / 4)
}

/// Parses up to eight digits and a unit, such as `20m` for 20 ms.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(3_600 * number)),
        "M" => Some(Duration::from_secs(60 * number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Denies a request that is too large: Envoy would let it pass on an error, and clients can influence its size.
fn deny_unread(active: &ActiveConfig) -> Bytes {
    framed(&response::denial(0, active.revision().settings.shadow))
}

fn permit(
    revision: &Revision,
    headers: &HeaderMap,
    request: &RateLimitRequest,
) -> Result<(), Failure> {
    let access = known(Keys(&revision.settings.security.credentials), headers)?;
    let domain = std::str::from_utf8(&request.domain).map_err(|_| EnvoyError::NotText)?;
    if !access.allows(request.scope(), domain) {
        let message = "the API key does not permit this in this domain";
        return Err(Failure::new(GrpcCode::PermissionDenied, message));
    }
    if request.is_inline(revision) && !access.allows_inline() {
        return Err(Failure::new(GrpcCode::PermissionDenied, INLINE_DENIED));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_number_and_a_unit() {
        for (text, micros) in [
            ("20m", Some(20_000)),
            ("1S", Some(1_000_000)),
            ("99999999H", Some(99_999_999 * 3_600_000_000)),
            ("2M", Some(120_000_000)),
            ("0u", Some(0)),
            ("7000n", Some(7)),
            ("", None),
            ("m", None),
            ("20", None),
            ("20s", None),
            ("+2m", None),
            ("100000000m", None),
            ("2ä", None),
        ] {
            assert_eq!(parse_timeout(text), micros.map(Duration::from_micros), "{text}");
        }
    }
}
