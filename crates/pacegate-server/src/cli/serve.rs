use std::{io, num::NonZeroUsize, path::PathBuf, process::ExitCode, str::FromStr, sync::Arc};

use pacegate::policy::Policy;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Trouble, log, print_line};
use crate::{
    config::Bind,
    reload::Reloader,
    server::{Server, StartError},
    source::{Overrides, Source},
};

/// Decide for everybody who asks: over HTTP, as Envoy's rate limit service, and as a Redis
///
/// Without any options: state in memory, a policy of 100 requests a minute for each key, and all
/// listeners on the loopback. What is given here goes before what files say.
///
/// Files are read again when they change and on SIGHUP; one that cannot be used changes nothing. On
/// SIGTERM and SIGINT, what was begun is answered first.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// What to decide by: a file of Pacegate's; files or folders of envoyproxy/ratelimit's; one of RLaaS
    #[arg(long, value_name = "FILE", env = "PACEGATE_CONFIG")]
    config: Vec<PathBuf>,

    /// Where state lives: memory, redis://, rediss://, redis+cluster://, redis+sentinel://, redis+unix://
    #[arg(long, value_name = "URL", env = "PACEGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Where to speak HTTP: an address and a port, 0 for any that is free, or off
    #[arg(long, value_name = "ADDR", env = "PACEGATE_HTTP")]
    http: Option<BindText>,

    /// Where to speak gRPC, to Envoy
    #[arg(long, value_name = "ADDR", env = "PACEGATE_GRPC")]
    grpc: Option<BindText>,

    /// Where to speak the protocol of Redis
    #[arg(long, value_name = "ADDR", env = "PACEGATE_RESP")]
    resp: Option<BindText>,

    /// Listen without certificates and API keys also where others can reach it
    #[arg(long, env = "PACEGATE_INSECURE")]
    insecure: bool,

    /// Serve connections with so many threads; one for each processor unless said
    #[arg(long, value_name = "N", env = "PACEGATE_WORKERS")]
    workers: Option<NonZeroUsize>,

    #[command(flatten)]
    log: log::LogArgs,
}

const EXAMPLES: &str = "\
Examples:
  In memory, on the loopback, and a request:
    pacegate serve
    curl -H 'Content-Type: application/json' -d '{\"attributes\": {\"key\": \"alice\"}}' \\
      http://127.0.0.1:8080/v1/check

  Policies of your own, with state that several processes share:
    pacegate serve --config pacegate.yaml --store redis://127.0.0.1:6379

  Nothing but a Redis that knows CL.THROTTLE, on any free port:
    pacegate serve --http off --grpc off --resp 127.0.0.1:0

  In place of envoyproxy/ratelimit, with its files:
    pacegate serve --config /data/ratelimit/config";

/// `off`, or an address.
#[derive(Clone, Copy, Debug)]
struct BindText(Bind);

/// What the program is told from outside.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl FromStr for BindText {
    type Err = crate::config::BindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse()?))
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Trouble::new(error, "cannot begin", "see whether the system is out of threads or files")
    })?;
    let source = source(args);
    runtime.block_on(async {
        let traces = log::start(&args.log, source.logging())?;
        let code = serve(source, args.workers).await;
        if let Some(traces) = traces {
            // It waits for what it sends from here.
            let _ = tokio::task::spawn_blocking(move || traces.finish()).await;
        }
        code
    })
}

fn source(args: &Args) -> Source {
    let bind = |given: Option<BindText>| given.map(|BindText(bind)| bind);
    let overrides = Overrides {
        store: args.store.clone(),
        http: bind(args.http),
        grpc: bind(args.grpc),
        resp: bind(args.resp),
        insecure: args.insecure,
    };
    Source::new(args.config.clone(), overrides)
}

async fn serve(source: Source, threads: Option<NonZeroUsize>) -> Result<ExitCode, Trouble> {
    let settings = source.load().map_err(|error| {
        let hint = "pacegate validate FILE checks a file; docs/configuration.md has all there is";
        Trouble::new(anyhow::Error::msg(error), "cannot use the configuration", hint)
    })?;
    if [settings.http, settings.grpc, settings.resp] == [Bind::Off; 3] {
        let error = anyhow::anyhow!("all listeners are off, so that nobody can ask");
        let hint = "give one of --http, --grpc and --resp an address, such as 127.0.0.1:8080";
        return Err(Trouble::new(error, "cannot serve", hint));
    }
    let server = Server::bind(settings).map_err(|error| {
        let hint = hint(&error);
        Trouble::new(error, "cannot serve", hint)
    })?;
    let reloader = Reloader::new(server.gate().clone(), source, server.certificates());
    let reloader = Arc::new(reloader);
    // Whoever reads that it is ready may send signals.
    let signals = Signals::listen().map_err(|error| {
        Trouble::new(error, "cannot listen for signals", "see whether the system is out of files")
    })?;
    server.wait_for_store().await;
    greet(&server);
    tokio::spawn(reloader.clone().watch());
    tokio::spawn(reload_on_signal(signals.hangup, reloader.clone()));
    let end = ended(signals.terminate, signals.interrupt);
    let clean = server.run(reloader, threads, end).await.map_err(|error| {
        Trouble::new(error, "cannot serve", "see whether the system is out of threads or files")
    })?;
    if !clean {
        tracing::warn!("connections were cut that did not end in time");
    }
    Ok(ExitCode::SUCCESS)
}

fn hint(error: &StartError) -> &'static str {
    match error {
        StartError::Exposed(_) => {
            "configure both, listen on 127.0.0.1, or if the network keeps others out: --insecure"
        }
        StartError::Bind { .. } => "choose another address, port 0 for any that is free, or off",
        StartError::Open(_) => "pacegate doctor URL looks at a store",
        StartError::Tls(_) => "name files in PEM form that this user may read",
    }
}

/// Says where everything is, and what to try.
fn greet(server: &Server) {
    let endpoints = server.endpoints();
    for endpoint in &endpoints {
        print_line(endpoint);
    }
    let revision = server.gate().revision();
    if let Some(http) = endpoints.iter().find(|endpoint| endpoint.name == "http") {
        let scheme = if http.is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", http.address);
        let key = match revision.settings.security.credentials.is_empty() {
            true => "",
            false => "-H \"Authorization: Bearer $PACEGATE_KEY\" ",
        };
        let example = example(&url, revision.settings.policies.policies());
        print_line(format_args!("try: curl {key}{example}"));
        print_line(format_args!("see: {url}/ in a browser, or pacegate top {url}"));
    }
    let state = &revision.settings.store;
    let policies = revision.settings.policies.policies().len();
    let plural = if policies == 1 { "policy" } else { "policies" };
    print_line(format_args!("ready: {policies} {plural}, state in {state}"));
}

/// The arguments of a `curl` that asks about alice. If the first policy for all requests counts by another attribute
/// than `key`, it is a peek of that: the budget may be one that others already use.
fn example(url: &str, policies: &[Policy]) -> String {
    let is_plain =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let general = |policy: &&Policy| policy.domain.is_empty() && policy.matching.is_any();
    let attribute = policies.iter().find(general).and_then(|policy| policy.per.first());
    match attribute.filter(|name| *name != "key" && is_plain(name)) {
        Some(name) => format!("'{url}/v1/state?attribute={name}:alice'"),
        // Not `--json`, which curl has only since 7.82.
        None => format!(
            "-H 'Content-Type: application/json' -d '{{\"attributes\": {{\"key\": \"alice\"}}}}' {url}/v1/check"
        ),
    }
}

async fn reload_on_signal(mut hangups: Signal, reloader: Arc<Reloader>) {
    while hangups.recv().await.is_some() {
        let reloader = reloader.clone();
        // What is wrong is logged where it is found.
        let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
    }
}

/// Waits until somebody wants the program to end.
async fn ended(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
