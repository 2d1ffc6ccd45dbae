use pacegate::{Limit, Limiter, PolicySet};
use pacegate_http::Decide;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{kit, tonic_example::serve};

async fn drive(limiter: impl Decide) {
    let (listener, address) = kit::listen().await;
    tokio::spawn(async move { serve(listener, limiter).await.map_err(drop) });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    for left in ["1", "0"] {
        let response = client.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), left);
    }
    let denied = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "The quota is used up for now");
    // Unit tests check the encoding of the details. This test checks only that a client receives them.
    let details = String::from_utf8_lossy(denied.details());
    assert!(details.contains("google.rpc.RetryInfo"), "{details}");
    let pushback = denied.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u64 = pushback.to_str().unwrap().parse().unwrap();
    assert!((1..=3_600_000).contains(&millis), "{millis}");
}

fn limit() -> Limit {
    "2/hour sliding-log".parse().unwrap()
}

#[tokio::test]
async fn in_memory() {
    drive(Limiter::memory(limit())).await;
}

#[tokio::test]
async fn on_redis() {
    let (limiter, _server) = kit::shared(PolicySet::of_limits([limit()]).unwrap()).await;
    drive(limiter).await;
}
