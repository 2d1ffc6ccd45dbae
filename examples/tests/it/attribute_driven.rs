use http::Request;
use http_body_util::Full;
use pacegate::{MemoryStore, PolicySet, SharedLimiter};

use crate::{attribute_example::app, kit};

async fn drive(limiter: SharedLimiter) {
    // Two servers with a shared limiter, like two processes.
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let (listener, address) = kit::listen().await;
        let app = app(limiter.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        addresses.push(address);
    }
    let ask = async |server: usize, path: &str| {
        let uri = format!("http://{}{path}", addresses[server]);
        let request = Request::builder().uri(uri).body(Full::default()).unwrap();
        let (status, _, body) = kit::fetch(request).await;
        (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask(0, "/order/alice/7").await, (200, "7 for alice".to_owned()));
    let (status, body) = ask(1, "/order/alice/4").await;
    assert_eq!(status, 429);
    let told = "denied by policy `orders` (10/minute sliding-log), retry in ";
    assert!(body.starts_with(told), "{body}");
    assert_eq!(ask(1, "/order/alice/3").await.0, 200);
    assert_eq!(ask(0, "/order/bob/10").await.0, 200);
    let (status, body) = ask(0, "/order/carol/11").await;
    assert_eq!(status, 429);
    assert_eq!(body, "denied by policy `orders` (10/minute sliding-log), permanently");

    for server in [0, 1, 0] {
        assert_eq!(ask(server, "/report").await, (200, "all is well".to_owned()));
    }
    let (status, body) = ask(1, "/report").await;
    assert_eq!(status, 429);
    assert!(body.starts_with("denied by policy `reports` (3/hour sliding-log)"), "{body}");
}

#[tokio::test]
async fn in_memory() {
    drive(SharedLimiter::new(MemoryStore::default(), PolicySet::new([]).unwrap())).await;
}

#[tokio::test]
async fn on_redis() {
    let (limiter, _server) = kit::shared(PolicySet::new([]).unwrap()).await;
    drive(limiter).await;
}
