//! Requests and responses of the middleware.

use std::time::Duration;

use actix_web::{HttpResponse, test::TestRequest};
use http::Response;
use pacegate::{Limit, Timestamp};
use pacegate_actix::{Adjustment, Headers, Refusal, Rules};

use crate::kit::{get, limiter, send, statuses};

fn repeat(request: impl Fn() -> TestRequest, times: usize) -> impl Iterator<Item = TestRequest> {
    std::iter::repeat_with(request).take(times)
}

#[actix_web::test]
async fn headers_tell_how_it_stands() {
    let (limiter, clock) = limiter("2/minute");
    clock.set(Timestamp::from_micros(1_500_000));
    let rules = Rules::new(limiter).clock(clock.clone());
    let answers = send(rules, repeat(|| get("/").set_payload("body"), 3)).await;
    assert_eq!(statuses(&answers), [200, 200, 429]);
    let told = |place: usize| {
        [
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
        ]
        .map(|name| answers[place].header(name).unwrap_or("-"))
    };
    assert_eq!(told(0), ["\"default\";r=1;t=59", "\"default\";q=2;w=60", "2", "1", "60", "-"]);
    assert_eq!(told(2), ["\"default\";r=0;t=59", "\"default\";q=2;w=60", "2", "0", "60", "59"]);
    assert_eq!(answers[0].body, "Some(1) body", "the handler sees the decision and the payload");
    assert_eq!(answers[2].header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&answers[2].body).unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"][0]),
        (&429.into(), &"default".into())
    );
}

#[actix_web::test]
async fn headers_can_be_left_out() {
    let rules = Rules::new(limiter("1/minute").0).headers(Headers::OFF);
    let answers = send(rules, repeat(|| get("/"), 2)).await;
    assert_eq!(answers[0].header("ratelimit"), None);
    assert_eq!(answers[1].header("x-ratelimit-limit"), None);
    assert!(answers[1].header("retry-after").is_some());
}

#[actix_web::test]
async fn cost_and_skip_are_closures_over_the_request() {
    let rules = Rules::new(limiter("10/minute").0)
        .skip(|head| head.path() == "/health")
        .cost(|head| if head.query_string() == "big" { 6 } else { 1 });
    let paths = ["/?big", "/health", "/?big", "/", "/health"];
    let answers = send(rules, paths.map(get)).await;
    assert_eq!(statuses(&answers), [200, 200, 429, 200, 200]);
    assert_eq!((answers[1].body.as_str(), answers[1].header("ratelimit")), ("None ", None));
    assert_eq!(answers[3].body, "Some(3) ");
}

#[actix_web::test]
async fn denials_are_responses_of_actix_or_of_the_http_crate() {
    fn status(refusal: &Refusal) -> u16 {
        if matches!(refusal, Refusal::Denied(_)) { 503 } else { 413 }
    }
    let rules =
        || Rules::new(limiter("5/minute").0).cost(|head| if head.path() == "/9" { 9 } else { 5 });
    let of_actix = rules().deny_with(|refusal, head| {
        let mut response = HttpResponse::build(status(refusal).try_into().unwrap());
        response.insert_header(("x-own", "yes")).body(format!("no {}", head.path()))
    });
    let of_http = rules().deny_with(|refusal, head| {
        let body = format!("no {}", head.path()).into();
        Response::builder().status(status(refusal)).header("x-own", "yes").body(body).unwrap()
    });
    let requests = || ["/a", "/b", "/9"].map(get);
    for answers in [send(of_actix, requests()).await, send(of_http, requests()).await] {
        assert_eq!(statuses(&answers), [200, 503, 413]);
        let denied = &answers[1];
        assert_eq!((denied.body.as_str(), denied.header("x-own")), ("no /b", Some("yes")));
        assert!(denied.header("ratelimit").is_some() && denied.header("retry-after").is_some());
        assert_eq!(answers[2].header("ratelimit"), None, "nothing was decided");
    }
}

#[actix_web::test]
async fn the_arguments_of_key_closures_are_inferred() {
    let rules = Rules::new(limiter("1/minute").0).key(|head| Some(head.query_string().to_owned()));
    let answers = send(rules, ["/?a", "/?a", "/?b"].map(get)).await;
    assert_eq!(statuses(&answers), [200, 429, 200]);
}

#[actix_web::test]
async fn a_charge_is_corrected_when_the_response_is_known() {
    let (limiter, _) = limiter("3/minute");
    let rules =
        Rules::new(limiter.clone()).settle_with(|response| match response.status.as_u16() {
            404 => Adjustment::Refund,
            401 => Adjustment::Charge(1),
            _ => Adjustment::Keep,
        });
    let of = |status: &'static str| get("/").insert_header(("x-status", status));
    let answers = send(rules, ["404", "404", "404", "404", "401", "200", "200"].map(of)).await;
    assert_eq!(statuses(&answers), [404, 404, 404, 404, 401, 200, 429]);
}

#[actix_web::test]
async fn limits_may_be_chosen_for_each_request() {
    let rules = Rules::new(limiter("9/minute").0).limits(|head| {
        let pro = head.headers().contains_key("x-pro");
        let limit = Limit::per_minute(if pro { 2 } else { 1 });
        Some((if pro { "pro" } else { "free" }.parse().unwrap(), limit))
    });
    let pro = || get("/").insert_header(("x-pro", "1"));
    let answers = send(rules, [get("/"), get("/"), pro(), pro(), pro()]).await;
    assert_eq!(statuses(&answers), [200, 429, 200, 200, 429]);
    assert!(answers[4].header("ratelimit-policy").unwrap().starts_with("\"pro\";q=2"));
}

#[actix_web::test]
async fn an_inner_layer_has_the_word() {
    use actix_web::{App, dev::Service as _, test::init_service, web};
    use pacegate_actix::RateLimit;

    let (outer, inner) = (limiter("9/minute").0, limiter("1/hour").0);
    let app = App::new()
        .default_service(web::to(crate::kit::handler))
        .wrap(RateLimit::new(Rules::new(inner)))
        .wrap(RateLimit::new(Rules::new(outer)));
    let service = init_service(app).await;
    for (status, policy) in [(200, "\"default\";q=1;w=3600"), (429, "\"default\";q=1;w=3600")] {
        let response = service.call(get("/").to_request()).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers().get("ratelimit-policy").unwrap(), policy);
        assert_eq!(response.headers().get_all("ratelimit-policy").count(), 1);
    }
}

#[actix_web::test]
async fn a_client_that_waits_for_retry_after_is_admitted() {
    let (limiter, clock) = limiter("3/7s");
    for _ in 0..1_000 {
        let rules = Rules::new(limiter.clone()).clock(clock.clone());
        let answers = send(rules, repeat(|| get("/"), 4)).await;
        assert_eq!(statuses(&answers), [200, 200, 200, 429]);
        let wait: u64 = answers[3].header("retry-after").unwrap().parse().unwrap();
        clock.advance(Duration::from_secs(wait));
    }
}
