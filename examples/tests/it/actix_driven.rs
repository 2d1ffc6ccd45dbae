use std::net::TcpListener;

use http::{Method, Request};
use http_body_util::Full;
use pacegate::Limiter;
use pacegate_actix::Decide;

use crate::{
    actix_example::{policies, server},
    kit,
};

async fn drive(limiter: impl Decide) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = server(listener, limiter).unwrap();
    let handle = server.handle();
    let running = tokio::spawn(server);
    let ask = async |method: Method, path: &str, user: &str| {
        let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        let request = request.header("x-user", user).body(Full::default()).unwrap();
        let (status, headers, body) = kit::fetch(request).await;
        (status.as_u16(), headers, String::from_utf8(body.to_vec()).unwrap())
    };
    for used in [3, 6, 9] {
        let (status, headers, body) = ask(Method::POST, "/upload", "alice").await;
        assert_eq!((status, body.as_str()), (200, "thanks"));
        assert_eq!(headers["x-ratelimit-remaining"], (10 - used).to_string());
    }
    let (status, headers, body) = ask(Method::POST, "/upload", "alice").await;
    assert_eq!(
        (status, &headers["ratelimit-policy"]),
        (429, &"\"default\";q=10;w=60".parse().unwrap())
    );
    assert_eq!(headers["content-type"], "application/problem+json");
    let retry: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry), "{retry}");
    assert!(body.ends_with("\"violated-policies\":[\"default\"]}"), "{body}");
    for _ in 0..3 {
        assert_eq!(ask(Method::GET, "/nowhere", "alice").await.0, 404, "refunded");
    }
    let (status, _, body) = ask(Method::GET, "/quota", "alice").await;
    assert_eq!((status, body.as_str()), (200, "0 left"));
    assert_eq!(ask(Method::GET, "/quota", "alice").await.0, 429);
    assert_eq!(ask(Method::GET, "/quota", "bob").await.2, "9 left");
    let (status, headers, _) = ask(Method::GET, "/health", "alice").await;
    assert_eq!((status, headers.get("ratelimit")), (200, None));
    handle.stop(false).await;
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory() {
    drive(Limiter::builder().policies(policies().unwrap()).build().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis() {
    let (limiter, _server) = kit::shared(policies().unwrap()).await;
    drive(limiter).await;
}
