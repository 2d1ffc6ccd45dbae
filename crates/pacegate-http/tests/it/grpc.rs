//! Refusals over gRPC, decoded as a client would.

use std::{convert::Infallible, time::Duration};

use http::HeaderMap;
use pacegate::{Decision, Limit, Limiter};
use pacegate_http::{RateLimitLayer, ResolveExt, resolve::Header};
use prost::Message;
use tower::{Layer, service_fn};

use crate::kit::{self, Answer, Asking, ask, body, text, with};

#[derive(Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Message)]
struct RetryInfo {
    #[prost(message, tag = "1")]
    retry_delay: Option<Span>,
}

#[derive(Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<Violation>,
}

#[derive(Message)]
struct Violation {
    #[prost(string, tag = "1")]
    subject: String,
    #[prost(string, tag = "2")]
    description: String,
}

#[test]
fn a_denial_is_a_status_with_details() {
    let clock = kit::clock();
    let limiter = Limiter::builder().limit("1/minute").clock(clock.clone()).build().unwrap();
    let service = RateLimitLayer::new(limiter).clock(clock).layer(service_fn(kit::fine));
    let call = || call_of("application/grpc+proto");
    assert_eq!(ask(&service, call()).status(), 200);
    let denied = ask(&service, call());
    assert_eq!(denied.status(), 200);
    let headers = denied.headers();
    assert_eq!(text(headers, "content-type"), "application/grpc");
    assert_eq!(text(headers, "cache-control"), "no-store");
    assert_eq!(text(headers, "grpc-status"), "8");
    assert_eq!(text(headers, "grpc-message"), "The quota is used up for now");
    // The window ends 39.749999 s later.
    assert_eq!(text(headers, "grpc-retry-pushback-ms"), "39750");
    assert_eq!(text(headers, "retry-after"), "40");
    let status = details(headers);
    assert_eq!((status.code, &*status.message), (8, "The quota is used up for now"));
    let [retry, quota] = &status.details[..] else { panic!("{status:?}") };
    assert_eq!(retry.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let delay = RetryInfo::decode(&*retry.value).unwrap().retry_delay.unwrap();
    assert_eq!((delay.seconds, delay.nanos), (39, 749_999_000));
    assert_eq!(quota.type_url, "type.googleapis.com/google.rpc.QuotaFailure");
    let failure = QuotaFailure::decode(&*quota.value).unwrap();
    assert_eq!(failure.violations[0].subject, "default");
    assert_eq!(body(denied), "");
}

#[test]
fn permanent_denials_say_do_not_retry() {
    let limit = Limit::per_minute(1);
    let for_good = Decision::denial("shut".parse().unwrap(), limit, 0, None);
    let short = Decision::denial("shut".parse().unwrap(), limit, 0, Some(Duration::from_nanos(1)));
    for (decision, pushback, details_count) in [(for_good, "-1", 1), (short, "1", 2)] {
        let denied = refused_with(decision);
        assert_eq!(text(denied.headers(), "grpc-retry-pushback-ms"), pushback);
        assert_eq!(details(denied.headers()).details.len(), details_count);
    }
}

#[test]
fn mistakes_of_the_caller_are_invalid_arguments() {
    let limiter = Limiter::memory(Limit::per_minute(1));
    let missing = RateLimitLayer::new(limiter.clone()).by(Header::from_static("x-a").or_reject());
    let dear = RateLimitLayer::new(limiter).cost(|_| 2);
    for layer in [missing, dear] {
        let refused = ask(&layer.layer(service_fn(kit::fine)), call_of("application/grpc"));
        assert_eq!((refused.status().as_u16(), text(refused.headers(), "grpc-status")), (200, "3"));
        assert_eq!(refused.headers().get("grpc-retry-pushback-ms"), None);
    }
}

/// A cache that stores an empty 200 for a page would hide that page from all clients.
#[test]
fn only_calls_of_grpc_are_answered_by_it() {
    let post = |kind| (http::Method::POST, kind);
    for (method, kind) in [
        (http::Method::GET, "application/grpc"),
        (http::Method::HEAD, "application/grpc"),
        post("application/grpcx"),
        post("application/grpc-web+proto"),
        post("application/json"),
    ] {
        let mut call = call_of(kind);
        *call.method_mut() = method.clone();
        let denied = ask(&denying(), call);
        assert_eq!(denied.status(), 429, "{method} {kind}");
        assert_eq!(text(denied.headers(), "content-type"), "application/problem+json");
        assert_eq!(text(denied.headers(), "cache-control"), "no-store");
        assert_eq!(denied.headers().get("grpc-status"), None);
    }
    for kind in ["application/grpc", "application/grpc+json", "application/grpc;charset=utf-8"] {
        let denied = ask(&denying(), call_of(kind));
        assert_eq!((denied.status().as_u16(), text(denied.headers(), "grpc-status")), (200, "8"));
    }
}

/// A service that serves nothing.
fn denying() -> impl tower::Service<Asking, Response = Answer, Error = Infallible> + Clone {
    RateLimitLayer::new(Limiter::memory(Limit::per_minute(0))).layer(service_fn(kit::fine))
}

fn call_of(kind: &str) -> Asking {
    let mut call = with("/grpc.health.v1.Health/Check", "content-type", kind);
    *call.method_mut() = http::Method::POST;
    call
}

/// Returns the response to a call that a custom limiter denies.
fn refused_with(decision: Decision) -> Answer {
    use pacegate::CheckError;
    use pacegate_http::{Decide, Question, Reply};
    use std::future::Pending;

    #[derive(Clone)]
    struct Fixed(Decision);
    impl Decide for Fixed {
        type Deciding = Pending<Result<Decision, CheckError>>;
        fn decide(&self, _: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
            Reply::Now(Ok(self.0))
        }
    }
    let service = RateLimitLayer::new(Fixed(decision)).layer(service_fn(kit::fine));
    ask(&service, call_of("application/grpc"))
}

fn details(headers: &HeaderMap) -> Status {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is not a digit"),
    };
    let digits: Vec<u8> = text(headers, "grpc-status-details-bin").bytes().map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|chunk| {
        let bits = chunk.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - chunk.len()));
        bits.to_be_bytes()[1..chunk.len()].to_vec()
    });
    Status::decode(&*bytes.collect::<Vec<_>>()).unwrap()
}
