//! The servers. This program starts itself again with the name of the server.

use std::{
    env,
    io::{self, Error},
    net::SocketAddr,
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderName, HeaderValue},
    response::Response,
    routing::get,
};
use pacegate::Limiter;
use pacegate_http::{
    Headers, RateLimitLayer, ResetStyle,
    resolve::{ClientAddress, PeerAddress},
};
use tokio::{net::TcpListener, runtime};
use tower::util::MapResponseLayer;
use tower_governor::{
    GovernorLayer, governor::GovernorConfigBuilder, key_extractor::SmartIpKeyExtractor,
};

use crate::service::processes::{Process, Running};

const SERVE: &str = "serve-http";

/// Constant headers, as many and as long as Pacegate's.
pub static FIVE: [(HeaderName, HeaderValue); 5] = [
    constant("ratelimit", "\"default\";r=999999;t=1"),
    constant("ratelimit-policy", "\"default\";q=1000000;w=1"),
    constant("x-ratelimit-limit", "1000000"),
    constant("x-ratelimit-remaining", "999999"),
    constant("x-ratelimit-reset", "1800000000"),
];

const fn constant(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

/// Returns the name of the server that this process should be, if any.
pub fn asked_to_serve() -> Option<String> {
    let mut words = env::args().skip(1);
    (words.next()? == SERVE).then(|| words.next())?
}

pub fn start(subject: &str) -> io::Result<(Running, Process)> {
    Running::this_program(&[SERVE, subject])
}

pub fn serve(subject: &str) -> io::Result<()> {
    if subject.contains("actix") {
        return super::actix::serve(subject);
    }
    let app = app(subject).ok_or_else(|| Error::other(format!("unknown server `{subject}`")))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
    })
}

/// Returns the settings for the headers of tower_governor and actix-governor.
pub fn same_headers() -> Headers {
    let mut headers = Headers::OFF;
    headers.legacy = Some(ResetStyle::Off);
    headers
}

/// Creates the app. All apps have the same limit, which denies nothing: a burst of a million, refilled by one unit per
/// microsecond. All headers are on.
pub fn app(subject: &str) -> Option<Router> {
    let bare = Router::new().route("/", get(|| async { "hello" }));
    let limiter = || Limiter::builder().limit("1000000/second token-bucket").build().ok();
    let microsecond = Duration::from_micros(1);
    Some(match subject {
        "axum" => bare,
        "five headers" => bare.layer(MapResponseLayer::new(|mut response: Response| {
            for (name, value) in &FIVE {
                response.headers_mut().insert(name, value.clone());
            }
            response
        })),
        "empty layer" => bare.layer(MapResponseLayer::new(|response: Response| response)),
        "pacegate peer" => bare.layer(RateLimitLayer::new(limiter()?).by(PeerAddress::new())),
        "pacegate same headers" => {
            let layer = RateLimitLayer::new(limiter()?).by(PeerAddress::new());
            bare.layer(layer.headers(same_headers()))
        }
        "pacegate forwarded" => {
            let address = ClientAddress::trusting(["127.0.0.0/8".parse().ok()?]);
            bare.layer(RateLimitLayer::new(limiter()?).by(address))
        }
        "tower_governor peer" => {
            let mut config = GovernorConfigBuilder::default();
            let config = config.period(microsecond).burst_size(1_000_000).use_headers().finish()?;
            bare.layer(GovernorLayer::new(config))
        }
        "tower_governor forwarded" => {
            let mut config = GovernorConfigBuilder::default();
            let mut config = config.key_extractor(SmartIpKeyExtractor);
            let config = config.period(microsecond).burst_size(1_000_000).use_headers().finish()?;
            bare.layer(GovernorLayer::new(config))
        }
        _ => return None,
    })
}
