use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::Arc,
};

use super::{CommandError, log, print_line, runtime, sample::Sample, signals};
use clap::{ArgMatches, error::ErrorKind, parser::ValueSource};
use pacegate_redis::Layout;
use pacegate_server::{
    Bind, ConfigSource, Descriptors, Environment, ListenerId, Overrides, Reloader, Server,
    StartError,
};

/// Run the server: HTTP, Envoy gRPC and the Redis protocol
///
/// Without a file, the server reads ./pacegate.yaml if that exists. Without that, it counts in memory,
/// allows 100 requests a minute for each key, and listens on the loopback address.
///
/// Precedence: command line, environment, config file.
///
/// The server reloads its files when they change and on SIGHUP; if the new ones are invalid, it keeps
/// the current configuration. On SIGTERM and SIGINT it answers the requests in flight, then exits.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Serve {
    /// The configuration: a Pacegate or RLaaS file, or files and folders of envoyproxy/ratelimit
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The same as FILE
    #[arg(long, value_name = "FILE", env = "PACEGATE_CONFIG")]
    config: Vec<PathBuf>,

    /// The store: memory, redis://, rediss://, redis+cluster://, redis+sentinel://, redis+unix://
    ///
    /// All users of this machine can see the command line. Use --store-file, PACEGATE_STORE or the config file for an
    /// address with a password.
    #[arg(long, value_name = "URL", env = "PACEGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Read the address of --store from this file, such as a mounted secret
    #[arg(long, value_name = "FILE", env = "PACEGATE_STORE_FILE", conflicts_with = "store")]
    store_file: Option<PathBuf>,

    /// HTTP listener: HOST:PORT, port 0 for a free one, or off
    #[arg(long, value_name = "ADDR", env = "PACEGATE_HTTP")]
    http: Option<Bind>,

    /// gRPC listener for Envoy
    #[arg(long, value_name = "ADDR", env = "PACEGATE_GRPC")]
    grpc: Option<Bind>,

    /// Listener for Redis clients
    #[arg(long, value_name = "ADDR", env = "PACEGATE_RESP")]
    resp: Option<Bind>,

    /// Allow public addresses without TLS and API keys
    #[arg(long, env = "PACEGATE_INSECURE")]
    insecure: bool,

    /// Envoy descriptors: together (all or nothing) or independent [default: by the format of the file]
    #[arg(long, value_name = "MODE", env = "PACEGATE_DESCRIPTORS", hide_possible_values = true)]
    descriptors: Option<DescriptorMode>,

    /// Use the variables and defaults of envoyproxy/ratelimit if no file is given
    #[arg(long, hide = true)]
    ratelimit: bool,

    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N", env = "PACEGATE_WORKERS")]
    workers: Option<NonZeroUsize>,

    #[command(flatten)]
    log: log::LogArgs,
}

/// The file that is read if none is given.
const DEFAULT_FILE: &str = "pacegate.yaml";

const EXAMPLES: &str = "\
Examples:
  Count in memory, listen on the loopback address, and send a request:
    pacegate serve
    curl -H 'Content-Type: application/json' \\
      -d '{\"attributes\": {\"key\": \"alice\"}}' http://127.0.0.1:8080/v1/check

  Your own policies, with counters on Redis that several servers share:
    pacegate serve pacegate.yaml --store redis://127.0.0.1:6379

  Only the Redis protocol (CL.THROTTLE), on a free port:
    pacegate serve --http off --grpc off --resp 127.0.0.1:0

  Replace envoyproxy/ratelimit and keep its files:
    pacegate serve /data/ratelimit/config";

/// The values of `--descriptors`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DescriptorMode {
    Together,
    Independent,
}

impl From<DescriptorMode> for Descriptors {
    fn from(mode: DescriptorMode) -> Self {
        match mode {
            DescriptorMode::Together => Self::Together,
            DescriptorMode::Independent => Self::Independent,
        }
    }
}

impl Serve {
    /// Gives the command line precedence over PACEGATE_CONFIG, and rejects FILE together with --config.
    pub(super) fn resolve_sources(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if self.files.is_empty() {
            self.files = std::mem::take(&mut self.config);
        } else if matches.value_source("config") == Some(ValueSource::CommandLine) {
            let message = "FILE and --config are the same: use one of them\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        Ok(())
    }
}

pub(super) fn run(args: &Serve) -> Result<ExitCode, CommandError> {
    let source = source(args);
    runtime()?.block_on(async {
        let traces = log::start(&args.log, source.logging())?;
        warn_of_visible_password(args);
        let code = serve(source, args.workers).await;
        if let Some(traces) = traces {
            // Blocks until the last spans are sent.
            let _ = tokio::task::spawn_blocking(move || traces.finish()).await;
        }
        code
    })
}

/// Warns if the password of the store is on the command line, which all users can read.
fn warn_of_visible_password(args: &Serve) {
    let is_typed = args.store != Environment::process().get("PACEGATE_STORE");
    let has_password = |url: &String| url.contains('@') || url.contains("password=");
    if is_typed && args.store.as_ref().is_some_and(has_password) {
        tracing::warn!(
            "the password in --store is visible to all users of this machine: use --store-file, \
             PACEGATE_STORE or the config file"
        );
    }
}

fn source(args: &Serve) -> ConfigSource {
    let listen = [
        (ListenerId::Http, args.http),
        (ListenerId::Grpc, args.grpc),
        (ListenerId::Resp, args.resp),
    ];
    let overrides = Overrides {
        store: args.store.clone(),
        store_file: args.store_file.clone(),
        listen: listen.into_iter().filter_map(|(id, given)| Some((id, given?))).collect(),
        insecure: args.insecure,
        descriptors: args.descriptors.map(Descriptors::from),
        ratelimit: args.ratelimit,
    };
    ConfigSource::new(args.files.clone(), overrides).or_file(Path::new(DEFAULT_FILE))
}

async fn serve(
    source: ConfigSource,
    threads: Option<NonZeroUsize>,
) -> Result<ExitCode, CommandError> {
    let settings = source.load().map_err(|error| {
        let hint = "check the file with pacegate validate FILE; see docs/configuration.md";
        CommandError::new(error, "cannot use the configuration", hint)
    })?;
    if settings.listen.all_off() {
        let error = anyhow::anyhow!("all listeners are off");
        let hint = "set an address for --http, --grpc or --resp, such as 127.0.0.1:8080";
        return Err(CommandError::new(error, "cannot serve", hint));
    }
    let server = Server::bind(settings, threads).map_err(|error| {
        let hint = hint(&error);
        CommandError::new(error, "cannot serve", hint)
    })?;
    let reloader = server.reloader(source);
    // Install the handlers before printing `ready`, because signals may arrive right after it.
    let no_signals = |error| {
        let hint = "raise the limit for open files, for example with ulimit -n 4096";
        CommandError::new(error, "cannot listen for signals", hint)
    };
    let mut end = pin!(signals::end().map_err(no_signals)?);
    let reloads = signals::reload({
        let reloader = reloader.clone();
        move || reload(reloader.clone())
    });
    let reloads = reloads.map_err(no_signals)?;
    server.wait_for_store().await;
    let config_client = reloader.follow_config_servers();
    if let Some(client) = &config_client {
        tokio::select! {
            () = client.wait_for_configuration() => {}
            () = &mut end => return Ok(ExitCode::SUCCESS),
        }
    }
    greet(&server);
    tokio::spawn(reloader.clone().watch());
    tokio::spawn(reloads);
    if !server.run(reloader, end).await {
        tracing::warn!("closed connections that did not drain in time");
    }
    Ok(ExitCode::SUCCESS)
}

fn hint(error: &StartError) -> &'static str {
    match error {
        StartError::Exposed(_) => {
            "configure both, listen on 127.0.0.1, or use --insecure in a private network"
        }
        StartError::Bind { .. } => "choose another address, port 0 for a free port, or off",
        StartError::Open(_) => "check the store with pacegate doctor URL",
        StartError::Tls(_) => "use PEM files that this user can read",
        StartError::Workers(_) => {
            "raise the limits for processes and open files (ulimit -u, ulimit -n)"
        }
    }
}

/// Prints the addresses, and a request to try.
fn greet(server: &Server) {
    let endpoints = server.endpoints();
    for endpoint in &endpoints {
        print_line(endpoint);
    }
    let settings = server.settings();
    if let Some(http) = endpoints.iter().find(|endpoint| endpoint.name == "http") {
        let scheme = if http.is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", http.address);
        let key = match settings.security.credentials.is_empty() {
            true => "",
            false => "-H \"Authorization: Bearer $PACEGATE_KEY\" ",
        };
        if let Some(request) = Sample::of(&settings.policies) {
            // With the layout of another limiter, only read the counters: that limiter may be in use.
            let example = match settings.layout == Layout::native() {
                true => request.check(&url),
                false => request.peek(&url),
            };
            print_line(format_args!("try: curl {key}{example}"));
        }
        print_line(format_args!("see: {url}/ in a browser, or pacegate top {url}"));
    }
    if let Some(rules) = &settings.ratelimit {
        let counting = match settings.descriptors {
            Some(Descriptors::Together) => "all descriptors of a request are counted, or none",
            _ => "descriptors are counted independently, and denied hits too",
        };
        print_line(format_args!("mode: envoyproxy/ratelimit, with {rules}; {counting}"));
    }
    let state = &settings.store;
    let policies = settings.policies.policies().len();
    let plural = if policies == 1 { "policy" } else { "policies" };
    print_line(format_args!("ready: {policies} {plural}, state in {state}"));
}

async fn reload(reloader: Arc<Reloader>) {
    // The reloader logs errors.
    let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
}
