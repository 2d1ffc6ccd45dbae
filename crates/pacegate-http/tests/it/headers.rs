//! Rate limit headers, parsed by a strict parser of structured fields (RFC 9651).

use std::time::Duration;

use http::HeaderMap;
use pacegate::{
    Charge, Decision, Limit, Limiter, Outcomes, PolicySet, Reply, SharedLimiter, Store, Timestamp,
    Update,
    algorithm::{Origin, Outcome},
};
use pacegate_http::{
    HeaderStyle, Headers, RateLimitLayer, ResetStyle, ResolveExt,
    resolve::{Header, Path},
};
use pacegate_testkit::Random;
use proptest::prelude::*;
use tower::{Layer, service_fn};

use crate::kit::{self, ask, get, text};

/// The value of a parameter.
#[derive(Debug, PartialEq, Eq)]
enum Bare {
    Integer(u64),
    Text(String),
}

type Item = (String, Vec<(String, Bare)>);

#[test]
fn a_denial_says_all_there_is() {
    let limit: Limit = "600/minute".parse().unwrap();
    let wait = Duration::from_millis(2_500);
    let decision = Decision::denial("api".parse().unwrap(), limit, 3, Some(wait));
    let headers = written(&Headers::default(), &decision, 1_700_000_000_000_001);
    let names = ["retry-after", "ratelimit", "ratelimit-policy"];
    let found = names.map(|name| text(&headers, name));
    assert_eq!(found, ["3", "\"api\";r=3;t=3", "\"api\";q=600;w=60"]);
    let legacy = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(legacy.map(|name| text(&headers, name)), ["600", "3", "1700000003"]);
}

#[test]
fn settings_leave_headers_out() {
    let limit = Limit::per_minute(10);
    let denied = Decision::denial("api".parse().unwrap(), limit, 0, Some(Duration::from_micros(1)));
    let off = written(&Headers::OFF, &denied, 0);
    assert_eq!((off.len(), text(&off, "retry-after")), (1, "1"));
    let mut delta = Headers::OFF;
    delta.legacy = Some(ResetStyle::Delta);
    assert_eq!(text(&written(&delta, &denied, 0), "x-ratelimit-reset"), "1");
    let for_good = Decision::denial("api".parse().unwrap(), limit, 0, None);
    let headers = written(&Headers::default(), &for_good, 0);
    assert_eq!(headers.get("retry-after"), None);
    assert_eq!(text(&headers, "ratelimit"), "\"api\";r=0");
}

#[test]
fn the_two_headers_of_other_middleware_are_a_setting() {
    let limit = Limit::per_minute(20_000);
    let wait = Some(Duration::from_secs(1));
    let denied = Decision::denial("api".parse().unwrap(), limit, 12_345, wait);
    let mut pair = Headers::OFF;
    pair.legacy = Some(ResetStyle::Off);
    let headers = written(&pair, &denied, 0);
    let mut all: Vec<_> =
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    all.sort_unstable();
    let pair = [("x-ratelimit-limit", "20000"), ("x-ratelimit-remaining", "12345")];
    assert_eq!(all, [&[("retry-after", "1")], &pair[..]].concat());
}

#[test]
fn the_three_headers_of_earlier_drafts_are_a_setting() {
    let mut trio = Headers::OFF;
    trio.standard = HeaderStyle::Draft6;
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    let wait = Duration::from_millis(2_500);
    let limit: Limit = "10/second burst 20".parse().unwrap();
    let denied = Decision::denial("api".parse().unwrap(), limit, 3, Some(wait));
    let headers = written(&trio, &denied, 1_700_000_000_000_001);
    assert_eq!(names.map(|name| text(&headers, name)), ["20", "3", "3"]);
    assert_eq!((headers.len(), text(&headers, "retry-after")), (4, "3"));
    let admitted = Decision::admission("api".parse().unwrap(), limit, 19, Duration::from_secs(1));
    let headers = written(&trio, &admitted, 0);
    assert_eq!(names.map(|name| text(&headers, name)), ["20", "19", "1"]);
    assert_eq!(headers.len(), 3);
}

#[test]
fn an_inner_layer_keeps_its_three_headers() {
    let mut trio = Headers::default();
    trio.standard = HeaderStyle::Draft6;
    for inner in [
        [("ratelimit-limit", "7"), ("ratelimit-remaining", "6")],
        [("x-ratelimit-limit", "7"), ("ratelimit-remaining", "6")],
    ] {
        let service = service_fn(move |request| async move {
            let mut response = kit::fine(request).await?;
            for (name, value) in inner {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            Ok::<_, std::convert::Infallible>(response)
        });
        let limiter = Limiter::memory(Limit::per_minute(100));
        let response = ask(&RateLimitLayer::new(limiter).headers(trio).layer(service), get("/"));
        let headers = response.headers();
        assert_eq!(headers.len(), 2, "{headers:?}");
        assert!(inner.iter().all(|&(name, value)| text(headers, name) == value), "{headers:?}");
    }
}

#[test]
fn a_denial_describes_itself_if_asked_to() {
    let limiter = Limiter::builder().limit("1/1500ms").clock(kit::clock()).build().unwrap();
    let layer = RateLimitLayer::new(limiter).by(Path.and(Header::from_static("x-user")));
    let denied = |layer: &RateLimitLayer<Limiter>| -> serde_json::Value {
        let service = layer.layer(service_fn(kit::fine));
        let request = || kit::with("/a", "x-user", "al\"ice");
        ask(&service, request());
        serde_json::from_str(&kit::body(ask(&service, request()))).unwrap()
    };
    let plain = denied(&layer);
    assert_eq!(plain.as_object().unwrap().len(), 4, "{plain}");
    let described = denied(&layer.describe_denials());
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "The quota is used up for now",
        "status": 429,
        "violated-policies": ["default"],
        "key": "/a:al\"ice",
        "limit": "1/1500ms",
        "window": 1.5,
        "retry_after": 1,
    });
    assert_eq!(described, expected);
}

#[test]
fn odd_limits_have_odd_windows() {
    let admitted = |limit: &str| {
        let limit = limit.parse().unwrap();
        let decision = Decision::admission("a".parse().unwrap(), limit, 1, Duration::ZERO);
        text(&written(&Headers::default(), &decision, 0), "ratelimit-policy").to_owned()
    };
    assert_eq!(admitted("5/250ms"), "\"a\";q=5;pacegate-ms=250");
    assert_eq!(admitted("5/1500ms"), "\"a\";q=5;pacegate-ms=1500");
    assert_eq!(admitted("5/30s concurrency"), "\"a\";q=5;qu=\"concurrent-requests\"");
}

fn decisions() -> impl Strategy<Value = Decision> {
    let name = "[A-Za-z0-9_.-]{1,64}";
    let amount = prop_oneof![0_u64..1_000, any::<u64>()];
    let period = prop_oneof![1_u64..5_000, 1_u64..1 << 42].prop_map(Duration::from_millis);
    let time = prop_oneof![
        (0_u64..3_000_000).prop_map(Duration::from_micros),
        any::<u64>().prop_map(Duration::from_micros),
        any::<u64>().prop_map(Duration::from_secs),
    ];
    let parts = (name, amount, period, any::<u64>(), proptest::option::of(time), any::<bool>());
    parts.prop_filter_map("a limit", |(name, amount, period, remaining, time, allowed)| {
        let limit = Limit::new(amount, period).ok()?;
        let name = name.parse().ok()?;
        Some(match allowed {
            true => Decision::admission(name, limit, remaining, time.unwrap_or_default()),
            false => Decision::denial(name, limit, remaining, time),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_header_is_read_back(decision in decisions(), now in 0_u64..1 << 53, delta: bool) {
        let mut settings = Headers::default();
        settings.legacy = Some(if delta { ResetStyle::Delta } else { ResetStyle::Epoch });
        let headers = written(&settings, &decision, now);
        let policy = decision.policy().unwrap();
        let limit = decision.limit().unwrap();

        let (name, parameters) = item(text(&headers, "ratelimit"));
        prop_assert_eq!(&name, policy.as_str());
        prop_assert_eq!(integer(&parameters, "r"), Some(capped(decision.remaining().into())));
        let wait = decision.more_after();
        let least = u64::from(!decision.is_allowed() || decision.remaining() == 0);
        let seconds = wait.map(|wait| capped(wait.as_micros().div_ceil(1_000_000)).max(least));
        prop_assert_eq!(integer(&parameters, "t"), seconds);

        let (name, parameters) = item(text(&headers, "ratelimit-policy"));
        prop_assert_eq!(&name, policy.as_str());
        prop_assert_eq!(integer(&parameters, "q"), Some(capped(limit.amount().into())));
        let millis = limit.period().as_millis();
        let whole = (millis % 1_000 == 0).then(|| capped(millis / 1_000));
        prop_assert_eq!(integer(&parameters, "w"), whole);
        let odd = (millis % 1_000 > 0).then(|| capped(millis));
        prop_assert_eq!(integer(&parameters, "pacegate-ms"), odd);

        for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
            prop_assert!(digits(text(&headers, name)).is_some(), "{}", name);
        }
        let retry = headers.get("retry-after").map(|value| digits(value.to_str().unwrap()));
        prop_assert_eq!(retry.is_some(), decision.retry_after().is_some());
        if let (Some(retry), Some(wait)) = (retry, decision.retry_after()) {
            let told = u128::from(retry.unwrap()) * 1_000_000;
            prop_assert!(told > 0 && (told >= wait.as_micros() || retry == Some(MOST)));
        }
    }
}

/// All 1,000 clients that wait for `Retry-After` are admitted.
#[test]
fn clients_that_wait_for_retry_after_are_admitted() {
    let mut random = Random::new(5);
    for round in 0..1_000 {
        let clock = kit::clock();
        clock.advance(Duration::from_micros(random.below(5_000_000)));
        let unit = random.pick(&["ms", "s"]);
        let period = random.between(1, 5_000);
        let amount = random.between(1, 20);
        let algorithm =
            random.pick(&["fixed-window", "sliding-window", "sliding-log", "token-bucket"]);
        let limit: Limit = format!("{amount}/{period}{unit} {algorithm}").parse().unwrap();
        let limiter = Limiter::builder().limit(limit).clock(clock.clone());
        let layer = RateLimitLayer::new(limiter.build().unwrap()).by(Path);
        let service = layer.clock(clock.clone()).layer(service_fn(kit::fine));
        let retry = loop {
            clock.advance(Duration::from_micros(random.below(1_000)));
            let response = ask(&service, get("/"));
            if response.status() == 429 {
                break text(response.headers(), "retry-after").parse::<u64>().unwrap();
            }
        };
        assert!(retry > 0, "{limit}");
        clock.advance(Duration::from_secs(retry));
        let response = ask(&service, get("/"));
        assert_eq!(response.status(), 200, "round {round}: {limit} after {retry} s");
    }
}

/// A store that answers from its deny cache, with an end that is late by a round trip. It may have a clock
/// that differs from that of this process.
#[derive(Debug)]
struct Remembers(Duration, Option<Timestamp>);

impl Store for Remembers {
    fn charge(&self, charges: &[Charge<'_>], _: Option<&[u8]>) -> Reply<'_, Outcomes> {
        let denied = Outcome::denied(0, Some(self.0), self.0).with_origin(Origin::DenyCache);
        let denied = self.1.map_or(denied, |instant| denied.with_decided_at(instant));
        Reply::Ready(Ok(charges.iter().map(|_| denied).collect()))
    }

    fn update(&self, _: &Charge<'_>, _: Update) -> Reply<'_, bool> {
        Reply::Ready(Ok(true))
    }
}

#[test]
fn the_end_of_a_window_is_the_same_for_a_denial_that_is_remembered() {
    let reset = |limit: &str, late: u64| {
        // The minute ends 9.75 s later.
        let now = 1_700_000_030_250_000;
        let store = Remembers(Duration::from_micros(9_750_000 + late), None);
        let policies = PolicySet::of_limits([limit.parse().unwrap()]).unwrap();
        let limiter = SharedLimiter::new(store, policies);
        let decision = pollster::block_on(limiter.check("alice")).unwrap();
        let headers = written(&Headers::default(), &decision, now);
        text(&headers, "x-ratelimit-reset").parse::<u64>().unwrap()
    };
    assert_eq!([0, 1, 900, 20_000].map(|late| reset("5/minute", late)), [1_700_000_040; 4]);
    assert_eq!(reset("5/minute", 200_000), 1_700_000_041, "longer than a round trip");
    assert_eq!(reset("5/7s", 1), 1_700_000_041, "no window of 7 s ends there");
    assert_eq!(reset("5/minute sliding-log", 1), 1_700_000_041);
}

#[test]
fn reset_comes_from_the_clock_that_counted() {
    let store_now = 1_700_000_030_250_000;
    for skew in [-3_000_000, 0, 3_000_000] {
        let instant = Timestamp::from_micros(store_now);
        let store = Remembers(Duration::from_micros(9_750_000), Some(instant));
        let policies = PolicySet::of_limits(["5/minute".parse().unwrap()]).unwrap();
        let limiter = SharedLimiter::new(store, policies);
        let decision = pollster::block_on(limiter.check("alice")).unwrap();
        let here = store_now.saturating_add_signed(skew);
        let headers = written(&Headers::default(), &decision, here);
        assert_eq!(text(&headers, "x-ratelimit-reset"), "1700000040", "{skew}");
        assert_eq!(text(&headers, "retry-after"), "10", "{skew}");
    }
}

const MOST: u64 = 999_999_999_999_999;

fn capped(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(MOST).min(MOST)
}

fn written(settings: &Headers, decision: &Decision, now: u64) -> HeaderMap {
    assert!(matches!(
        settings.standard,
        HeaderStyle::Off | HeaderStyle::Draft8 | HeaderStyle::Draft6
    ));
    let mut headers = HeaderMap::new();
    settings.write(decision, Timestamp::from_micros(now), &mut headers);
    headers
}

/// An `sf-item` that is a string, with nothing around it.
fn item(text: &str) -> Item {
    let (name, mut rest) = string(text);
    let mut parameters = Vec::new();
    while let Some(parameter) = rest.strip_prefix(';') {
        let end = parameter.find('=').expect("every parameter has a value");
        let key = &parameter[..end];
        let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
        assert!(key.starts_with(|c: char| c.is_ascii_lowercase()) && key.chars().all(is_key));
        let value = &parameter[end + 1..];
        let (value, tail) = match value.starts_with('"') {
            true => {
                let (value, tail) = string(value);
                (Bare::Text(value), tail)
            }
            false => {
                let end = value.find(';').unwrap_or(value.len());
                let number = digits(&value[..end]).expect("an integer of at most 15 digits");
                (Bare::Integer(number), &value[end..])
            }
        };
        parameters.push((key.to_owned(), value));
        rest = tail;
    }
    assert_eq!(rest, "", "nothing follows an item");
    (name, parameters)
}

/// An `sf-string` at the beginning, and what follows.
fn string(text: &str) -> (String, &str) {
    let inner = text.strip_prefix('"').expect("a string begins with a quote");
    let mut value = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &inner[at + 1..]),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\'))) => value.push(c),
                other => panic!("{other:?} is escaped"),
            },
            ' '..='~' => value.push(c),
            other => panic!("{other:?} in a string"),
        }
    }
    panic!("the string {text} has no end");
}

fn digits(text: &str) -> Option<u64> {
    let fits = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (fits && plain).then(|| text.parse().ok())?
}

fn integer(parameters: &[(String, Bare)], key: &str) -> Option<u64> {
    let found = parameters.iter().find(|(other, _)| other == key);
    found.map(|(_, value)| match value {
        Bare::Integer(number) => *number,
        Bare::Text(text) => panic!("{key} is the text {text}"),
    })
}
