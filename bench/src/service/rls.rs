//! Case "RLS on Redis": Envoy's rate limit service with counters on Redis, compared with envoyproxy/ratelimit.
//!
//! `PACEGATE_RATELIMIT` is the path of its program, for example from
//! `go install github.com/envoyproxy/ratelimit/src/service_cmd@main`. Without it, only Pacegate is measured. Both are
//! started with the same variables and rules, each with its own Redis: with default settings, and with pipelining and a
//! local cache. Each is compared with the peer that has the same settings. The load generator is `pacegate bench`, because
//! h2load sends only one key.

use std::{env, fs, io, net::TcpStream, process::Command};

use pacegate_testkit::servers::{Flavor, Server, eventually};
use serde_json::Value;

use super::{
    Subject,
    load::{Load, Slice, Stretch, strange},
    processes::{PATIENCE, Process, Running, folder, free_port},
};

/// The servers, and the Redis server of each.
pub struct Servers(Vec<(&'static str, Rls)>);

struct Rls {
    server: Process,
    redis: Process,
    _running: (Running, Server),
}

/// A kind of load.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    domain: &'static str,
    limit: &'static str,
    keys: &'static str,
}

/// `pacegate bench` with 10 connections of 10 streams.
struct Generator {
    case: Case,
    server: Process,
    redis: Process,
}

/// Pacegate and envoyproxy/ratelimit, with default settings.
const DEFAULT: [&str; 2] = ["pacegate", "ratelimit"];
/// Both with [`TUNING`].
const TUNED: [&str; 2] = ["pacegate, tuned", "ratelimit, tuned"];
/// Pipelining and the local cache of envoyproxy/ratelimit. Pacegate always pipelines.
const TUNING: [(&str, &str); 3] = [
    ("REDIS_PIPELINE_WINDOW", "150us"),
    ("REDIS_PIPELINE_LIMIT", "8"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "104857600"),
];

const ALLOWING: &str = "1000000000/day";
pub const CASES: [Case; 3] = [
    Case { name: "RLS on Redis, 100k", domain: "allow", limit: ALLOWING, keys: "uniform:100000" },
    Case { name: "RLS on Redis, one key", domain: "allow", limit: ALLOWING, keys: "hot" },
    Case { name: "RLS on Redis, denied", domain: "deny", limit: "1/day", keys: "uniform:100" },
];

const RULES: [(&str, &str); 2] = [("allow", "1000000000"), ("deny", "1")];
const PROGRAM: &str = "target/bench-build/release/pacegate";
const PEER: &str = "PACEGATE_RATELIMIT";

/// Returns true for envoyproxy/ratelimit, with any settings.
pub fn is_peer(subject: &str) -> bool {
    subject.starts_with(DEFAULT[1])
}

/// Returns true if `other` is a peer with the settings of `subject`, or no peer of this case.
pub fn has_same_settings(subject: &str, other: &str) -> bool {
    !is_peer(other) || [DEFAULT, TUNED].contains(&[subject, other])
}

impl Servers {
    /// Starts Pacegate, and the peer if its program is given.
    pub fn start(ours: bool) -> io::Result<Self> {
        let peer = env::var_os(PEER);
        if peer.is_none() {
            eprintln!("RLS on Redis: {PEER} is not set, so envoyproxy/ratelimit is not measured");
        }
        let mut servers = Vec::new();
        for (names, settings) in [(DEFAULT, &[][..]), (TUNED, &TUNING[..])] {
            if ours {
                let mut command = Command::new(PROGRAM);
                servers.push((names[0], Rls::start(command.arg("serve"), names[0], settings)?));
            }
            if let Some(peer) = &peer {
                let mut command = Command::new(peer);
                servers.push((names[1], Rls::start(&mut command, names[1], settings)?));
            }
        }
        Ok(Self(servers))
    }

    pub fn subjects(&self, case: &Case) -> Vec<Subject> {
        let subject = |(name, rls): &(&'static str, Rls)| -> Subject {
            let (server, redis) = (rls.server.clone(), rls.redis.clone());
            (name, Box::new(Generator { case: *case, server, redis }))
        };
        self.0.iter().map(subject).collect()
    }
}

impl Rls {
    /// Starts a server with the variables of envoyproxy/ratelimit.
    fn start(command: &mut Command, name: &str, more: &[(&str, &str)]) -> io::Result<Self> {
        let redis = Server::start(Flavor::Redis);
        let root = folder(&format!("rls-{name}"))?;
        fs::create_dir_all(root.join("config"))?;
        for (domain, amount) in RULES {
            let rule = format!("rate_limit: {{unit: day, requests_per_unit: {amount}}}");
            let text = format!("domain: {domain}\ndescriptors: [{{key: user, {rule}}}]\n");
            fs::write(root.join("config").join(format!("{domain}.yaml")), text)?;
        }
        let [http, grpc, debug] = [free_port()?, free_port()?, free_port()?];
        command.env("RUNTIME_ROOT", &root).envs(more.iter().copied()).envs([
            ("HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &redis.address()),
            ("REDIS_TIMEOUT", "10s"),
            ("USE_STATSD", "false"),
            ("RUNTIME_SUBDIRECTORY", ""),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "ERROR"),
        ]);
        for (variable, port) in [("PORT", http), ("GRPC_PORT", grpc), ("DEBUG_PORT", debug)] {
            command.env(variable, port.to_string());
        }
        let running = Running::start(command, name)?;
        let accepts = || TcpStream::connect(("127.0.0.1", grpc)).is_ok();
        eventually(PATIENCE, "the rate limit service accepts connections", accepts);
        let server = running.listener(&format!("127.0.0.1:{grpc}"));
        let process = Process { address: redis.address(), pid: redis.pid() };
        Ok(Self { server, redis: process, _running: (running, redis) })
    }
}

impl Load for Generator {
    fn run(&self, Stretch { seconds, .. }: Stretch, _round: usize) -> io::Result<Slice> {
        let Case { domain, limit, keys, .. } = self.case;
        let mut command = Command::new(PROGRAM);
        command.arg("bench").arg(format!("grpc://{}", self.server.address));
        command.args(["--domain", domain, "--attribute", "user", "--prefix", "k"]);
        command.args(["--limit", limit, "--keys", keys, "-c", "10", "-P", "10", "--json"]);
        // Earlier slices used up a part of the limit, so nothing is checked here.
        command.args(["--check", "0", "--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
        let before = (self.server.cpu_micros()?, self.redis.cpu_micros()?);
        let output = command.output()?;
        let after = (self.server.cpu_micros()?, self.redis.cpu_micros()?);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let number = |field: &Value| field.as_f64().filter(|number| *number > 0.0);
        let (Some(requests), Some(rate), Some(p99), Some(0)) = (
            number(&report["requests"]),
            number(&report["per_second"]),
            number(&report["latency"]["p99"]),
            report["failed"].as_u64(),
        ) else {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(strange(&command, &format!("{report} {errors}")));
        };
        Ok(Slice {
            rate,
            p99: Some(p99 * 1e6),
            cpu: (after.0 - before.0) as f64 / requests,
            redis_cpu: Some((after.1 - before.1) as f64 / requests),
        })
    }
}
