//! The servers: this program again, told which one to be.

use std::{
    env, fs,
    io::{self, Error},
    net::SocketAddr,
    process::Command,
    time::Duration,
};

use axum::{Router, routing::get};
use tokio::{net::TcpListener, runtime};
use tollgate::Limiter;
use tollgate_http::{
    Headers, RateLimitLayer, ResetStyle,
    resolve::{ClientAddress, PeerAddress},
};
use tollgate_testkit::servers::eventually;
use tower_governor::{
    GovernorLayer, governor::GovernorConfigBuilder, key_extractor::SmartIpKeyExtractor,
};

use crate::service::processes::{Process, Running};

const SERVE: &str = "serve-http";

/// Which server this program is to be, if any.
pub fn asked_to_serve() -> Option<String> {
    let mut words = env::args().skip(1);
    (words.next()? == SERVE).then(|| words.next())?
}

pub fn start(subject: &str) -> io::Result<(Running, Process)> {
    let mut command = Command::new(env::current_exe()?);
    command.args([SERVE, subject]);
    let running = Running::start(&mut command, &format!("http-{}", subject.replace(' ', "-")))?;
    let log = running.folder.join("log");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    eventually(Duration::from_secs(10), "the server says where", || said().ends_with('\n'));
    let process = running.listener(said().trim());
    Ok((running, process))
}

pub fn serve(subject: &str) -> io::Result<()> {
    if subject.contains("actix") {
        return super::actix::serve(subject);
    }
    let app = app(subject).ok_or_else(|| Error::other(format!("no server `{subject}`")))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
    })
}

/// All limits are the same, a million at once and one more each microsecond, which denies nothing; all headers are on.
fn app(subject: &str) -> Option<Router> {
    let bare = Router::new().route("/", get(|| async { "hello" }));
    let limiter = || Limiter::builder().limit("1000000/second token-bucket").build().ok();
    let microsecond = Duration::from_micros(1);
    Some(match subject {
        "axum" => bare,
        "tollgate peer" => bare.layer(RateLimitLayer::new(limiter()?).by(PeerAddress::new())),
        "tollgate legacy" => {
            let mut headers = Headers::OFF;
            headers.legacy = Some(ResetStyle::Epoch);
            let layer = RateLimitLayer::new(limiter()?).by(PeerAddress::new());
            bare.layer(layer.headers(headers))
        }
        "tollgate forwarded" => {
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
