use std::{io, net::SocketAddr, process::ExitCode, str::FromStr};

use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Limit, Policy, PolicyName, PolicySet};

use super::{Trouble, say};
use crate::{
    config::{Bind, Settings, StoreSettings},
    server::Server,
};

/// Decide for everybody who asks: over HTTP, as Envoy's rate limit service, and as a Redis
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Where state lives: memory, redis://, rediss://, redis+cluster://, redis+sentinel://, redis+unix://
    #[arg(long, value_name = "URL", env = "TOLLGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Where to speak HTTP: an address and a port, 0 for any that is free, or off
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_HTTP")]
    http: Option<BindText>,

    /// Where to speak gRPC, to Envoy
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_GRPC")]
    grpc: Option<BindText>,

    /// Where to speak the protocol of Redis
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_RESP")]
    resp: Option<BindText>,

    /// Listen without certificates and API keys also where others can reach it
    #[arg(long, env = "TOLLGATE_INSECURE")]
    insecure: bool,
}

const EXAMPLES: &str = "\
Examples:
  In memory, on the loopback:
    tollgate serve
";

/// `off`, or an address.
#[derive(Clone, Copy, Debug)]
struct BindText(Bind);

impl FromStr for BindText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(Bind::Off));
        }
        let address: Result<SocketAddr, _> = text.parse();
        let at =
            address.map_err(|_| "write an address and a port, such as 127.0.0.1:8080, or off")?;
        Ok(Self(Bind::At(at)))
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let limit: Limit =
        "100/minute".parse().map_err(|error| Trouble::new(anyhow::anyhow!("{error}"), "", ""))?;
    let policies = PolicySet::new([Policy::new(PolicyName::DEFAULT, [limit]).per(["key"])])
        .map_err(|error| Trouble::new(error, "", ""))?;
    let mut settings = Settings::new(policies);
    for (bind, given) in [
        (&mut settings.http, args.http),
        (&mut settings.grpc, args.grpc),
        (&mut settings.resp, args.resp),
    ] {
        if let Some(BindText(given)) = given {
            *bind = given;
        }
    }
    if let Some(url) = &args.store {
        settings.store = StoreSettings::Redis {
            url: url.clone(),
            prefix: "tg:".into(),
            deadline: std::time::Duration::from_millis(20),
        };
    }
    settings.security.insecure |= args.insecure;
    serve(settings)
}

fn serve(settings: Settings) -> Result<ExitCode, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Trouble::new(error, "cannot begin", "see whether the system is out of threads")
    })?;
    runtime.block_on(async {
        let server = Server::bind(settings)
            .map_err(|error| Trouble::new(error, "cannot serve", "choose another address"))?;
        for endpoint in server.endpoints() {
            say(endpoint.to_string());
        }
        let clean =
            server.run(ended()).await.map_err(|error| Trouble::new(error, "cannot serve", ""))?;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
    })
}

/// Waits until somebody wants the program to end.
async fn ended() {
    let (term, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut interrupt)) = (term, interrupt) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[expect(dead_code, reason = "in use shortly")]
fn unused() -> io::Result<()> {
    Ok(())
}
