//! Apps with actix-web: as servers with one worker each, or in this process.

use std::{
    hint::black_box,
    io::{self, Error},
    net::{IpAddr, SocketAddr, TcpListener},
    sync::LazyLock,
    time::Duration,
};

use actix_governor::{Governor, GovernorConfigBuilder, KeyExtractor, SimpleKeyExtractionError};
use actix_web::{
    App, HttpServer,
    dev::{Service, ServiceRequest},
    http::header::{HeaderName, HeaderValue},
    rt::System,
    test, web,
};
use pacegate::Limiter;
use pacegate_actix::{
    RateLimit, Rules,
    resolve::{ClientAddress, PeerAddress},
};

/// The constant headers of the axum servers, in actix-web's types.
static FIVE: LazyLock<Vec<(HeaderName, HeaderValue)>> = LazyLock::new(|| {
    let five = super::servers::FIVE.iter().map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_str().as_bytes()).expect("valid header name");
        (name, HeaderValue::from_bytes(value.as_bytes()).expect("valid header value"))
    });
    five.collect()
});

/// actix-governor has no key extractor for clients behind a proxy. This is the minimum that a program would
/// write.
#[derive(Clone)]
struct Forwarded;

impl KeyExtractor for Forwarded {
    type Key = IpAddr;
    type KeyExtractionError = SimpleKeyExtractionError<&'static str>;

    fn extract(&self, request: &ServiceRequest) -> Result<IpAddr, Self::KeyExtractionError> {
        let chain = request.headers().get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let last = chain.and_then(|chain| chain.rsplit(',').next()?.trim().parse().ok());
        last.ok_or_else(|| SimpleKeyExtractionError::new("no client address"))
    }
}

async fn hello() -> &'static str {
    "hello"
}

/// Passes an app to a macro, optionally with middleware. All limits are the same as in the axum servers.
macro_rules! with_app {
    ($subject:expr, $run:ident) => {{
        let unknown = || Error::other(format!("unknown server `{}`", $subject));
        let limiter = Limiter::builder().limit("1000000/second token-bucket").build();
        let rules = Rules::new(limiter.map_err(Error::other)?);
        let mut config = GovernorConfigBuilder::default();
        let config = config.period(Duration::from_micros(1)).burst_size(1_000_000);
        match $subject {
            "actix" => $run!(),
            "empty layer actix" => $run!(.wrap_fn(|request, app| app.call(request))),
            "five headers actix" => $run!(.wrap_fn(|request, app| {
                let response = app.call(request);
                async {
                    let mut response = response.await?;
                    for (name, value) in &*FIVE {
                        response.headers_mut().insert(name.clone(), value.clone());
                    }
                    Ok(response)
                }
            })),
            "pacegate actix peer" => {
                let limit = RateLimit::new(rules.by(PeerAddress::new()));
                $run!(.wrap(limit.clone()))
            }
            "pacegate actix same headers" => {
                let rules = rules.by(PeerAddress::new()).headers(super::servers::same_headers());
                let limit = RateLimit::new(rules);
                $run!(.wrap(limit.clone()))
            }
            "pacegate actix forwarded" => {
                let network = "127.0.0.0/8".parse().map_err(Error::other)?;
                let limit = RateLimit::new(rules.by(ClientAddress::trusting([network])));
                $run!(.wrap(limit.clone()))
            }
            "actix-governor peer" => {
                let config = config.use_headers().finish().ok_or_else(unknown)?;
                $run!(.wrap(Governor::new(&config)))
            }
            "actix-governor forwarded" => {
                let config = config.key_extractor(Forwarded).use_headers().finish();
                let config = config.ok_or_else(unknown)?;
                $run!(.wrap(Governor::new(&config)))
            }
            _ => Err(unknown()),
        }
    }};
}

macro_rules! run {
    ($($wrap:tt)*) => {{
        let app = move || App::new().route("/", web::get().to(hello))$($wrap)*;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        System::new().block_on(HttpServer::new(app).workers(1).listen(listener)?.run())
    }};
}

macro_rules! call {
    ($($wrap:tt)*) => {{
        let app = move || App::new().route("/", web::get().to(hello))$($wrap)*;
        Ok(Box::new(move |count| {
            System::new().block_on(async {
                let service = test::init_service(app()).await;
                for _ in 0..count {
                    let peer = SocketAddr::from(([127, 0, 0, 1], 4711));
                    let request = test::TestRequest::default().peer_addr(peer).to_request();
                    let response = test::call_service(&service, request).await;
                    assert_eq!(response.status(), 200);
                    black_box(response);
                }
            });
        }))
    }};
}

/// Runs a server.
pub fn serve(subject: &str) -> io::Result<()> {
    with_app!(subject, run)
}

/// A function that sends a number of requests.
pub type Calls = Box<dyn Fn(usize) + Sync>;

/// Returns a function that sends requests to an app in this process.
pub fn calls(subject: &str) -> io::Result<Calls> {
    with_app!(subject, call)
}
