//! The layer in a tonic server, called by a tonic client.

use pacegate::{Limit, Limiter};
use pacegate_http::{RateLimitLayer, Refusal, resolve::PeerAddress};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpListener;
use tonic::{
    Code, Status,
    body::Body,
    transport::{
        Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
        server::TcpIncoming,
    },
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

fn by_peer() -> RateLimitLayer<Limiter> {
    RateLimitLayer::new(Limiter::memory(Limit::per_minute(1))).by(PeerAddress::new())
}

/// Starts a server and returns its port.
async fn serve(server: Server, layer: RateLimitLayer<Limiter, Body>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (_, health) = tonic_health::server::health_reporter();
    let server = server.layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    port
}

/// Makes a call that is served and one that is denied, and returns the status of the latter.
async fn denied(channel: Channel) -> Status {
    let mut client = HealthClient::new(channel);
    let served = client.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(served.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    client.check(HealthCheckRequest::default()).await.unwrap_err()
}

async fn connect(port: u16) -> Channel {
    Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect().await.unwrap()
}

fn assert_retry_info(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = String::from_utf8_lossy(status.details());
    assert!(details.contains("google.rpc.RetryInfo"), "{details}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u64 = pushback.to_str().unwrap().parse().unwrap();
    assert!((1..=60_000).contains(&millis), "{millis}");
    assert!(status.metadata().contains_key("retry-after"));
}

#[tokio::test]
async fn counts_by_peer_and_denies_with_retry_info() {
    let port = serve(Server::builder(), by_peer().for_tonic()).await;
    let status = denied(connect(port).await).await;
    assert_eq!(status.message(), "The quota is used up for now");
    assert_retry_info(&status);
}

#[tokio::test]
async fn knows_the_peer_of_a_tls_connection() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
    let tls = ServerTlsConfig::new().identity(identity);
    let server = Server::builder().tls_config(tls).unwrap();
    let port = serve(server, by_peer().for_tonic()).await;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(cert.pem()))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    assert_retry_info(&denied(channel).await);
}

#[tokio::test]
async fn a_status_is_a_denial() {
    let layer = by_peer().deny_with(|refusal, head| match refusal {
        Refusal::Denied(_) => Status::resource_exhausted(format!("slow down: {}", head.uri.path())),
        _ => Status::internal("misconfigured"),
    });
    let status = denied(connect(serve(Server::builder(), layer).await).await).await;
    assert_eq!(status.message(), "slow down: /grpc.health.v1.Health/Check");
    assert_retry_info(&status);
}

#[tokio::test]
async fn a_status_keeps_its_code_and_details() {
    let layer = by_peer().deny_with(|_, _| Status::unavailable("later"));
    let status = denied(connect(serve(Server::builder(), layer).await).await).await;
    assert_eq!(
        (status.code(), status.message(), status.details()),
        (Code::Unavailable, "later", &[][..])
    );
    assert!(status.metadata().get("grpc-retry-pushback-ms").is_none());

    let layer = by_peer().deny_with(|_, _| {
        Status::with_details(Code::ResourceExhausted, "later", bytes::Bytes::from_static(b"mine"))
    });
    let status = denied(connect(serve(Server::builder(), layer).await).await).await;
    assert_eq!(status.details(), b"mine");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
}
