//! The servers on actix-web, with one worker each.

use std::{
    io::{self, Error},
    net::{IpAddr, TcpListener},
    sync::LazyLock,
    time::Duration,
};

use actix_governor::{Governor, GovernorConfigBuilder, KeyExtractor, SimpleKeyExtractionError};
use actix_web::{
    App, HttpServer,
    dev::{Service, ServiceRequest},
    http::header::{HeaderName, HeaderValue},
    rt::System,
    web,
};
use pacegate::Limiter;
use pacegate_actix::{
    RateLimit, Rules,
    resolve::{ClientAddress, PeerAddress},
};

/// The headers of the other servers, by the types that actix-web has.
static FIVE: LazyLock<Vec<(HeaderName, HeaderValue)>> = LazyLock::new(|| {
    let five = super::servers::FIVE.iter().map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_str().as_bytes()).expect("a header's name");
        (name, HeaderValue::from_bytes(value.as_bytes()).expect("a header's value"))
    });
    five.collect()
});

/// actix-governor has no key for those behind a proxy. This is the least that a program would write.
#[derive(Clone)]
struct Forwarded;

impl KeyExtractor for Forwarded {
    type Key = IpAddr;
    type KeyExtractionError = SimpleKeyExtractionError<&'static str>;

    fn extract(&self, request: &ServiceRequest) -> Result<IpAddr, Self::KeyExtractionError> {
        let chain = request.headers().get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let last = chain.and_then(|chain| chain.rsplit(',').next()?.trim().parse().ok());
        last.ok_or_else(|| SimpleKeyExtractionError::new("no address"))
    }
}

async fn hello() -> &'static str {
    "hello"
}

/// A server whose app is wrapped like this, if at all.
macro_rules! run {
    ($($wrap:tt)*) => {{
        let app = move || App::new().route("/", web::get().to(hello))$($wrap)*;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        System::new().block_on(HttpServer::new(app).workers(1).listen(listener)?.run())
    }};
}

/// The limits are those of the other servers.
pub fn serve(subject: &str) -> io::Result<()> {
    let unknown = || Error::other(format!("no server `{subject}`"));
    let limiter = Limiter::builder().limit("1000000/second token-bucket").build();
    let rules = Rules::new(limiter.map_err(Error::other)?);
    let mut config = GovernorConfigBuilder::default();
    let config = config.period(Duration::from_micros(1)).burst_size(1_000_000);
    match subject {
        "actix" => run!(),
        "five headers actix" => run!(.wrap_fn(|request, app| {
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
            run!(.wrap(limit.clone()))
        }
        "pacegate actix forwarded" => {
            let network = "127.0.0.0/8".parse().map_err(Error::other)?;
            let limit = RateLimit::new(rules.by(ClientAddress::trusting([network])));
            run!(.wrap(limit.clone()))
        }
        "actix-governor peer" => {
            let config = config.use_headers().finish().ok_or_else(unknown)?;
            run!(.wrap(Governor::new(&config)))
        }
        "actix-governor forwarded" => {
            let config = config.key_extractor(Forwarded).use_headers().finish();
            let config = config.ok_or_else(unknown)?;
            run!(.wrap(Governor::new(&config)))
        }
        _ => Err(unknown()),
    }
}
