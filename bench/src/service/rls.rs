//! Case "RLS on Redis": Envoy's rate limit service with counters on Redis, compared with envoyproxy/ratelimit.
//!
//! `PACEGATE_RATELIMIT` is the path of its program, for example from
//! `go install github.com/envoyproxy/ratelimit/src/service_cmd@latest`. Without it, only Pacegate is measured. Both are
//! started with the same variables and rules, each with its own Redis: with default settings, and with pipelining and a
//! local cache. Each is compared with the peer that has the same settings.

use std::{env, fs, io, net::TcpStream, process::Command};

use pacegate_testkit::servers::{Flavor, Server, eventually};

use super::{
    Subject,
    generator::{DENIED, DOMAINS, Generator, HOT, Protocol, Traffic, UNIFORM},
    processes::{PATIENCE, PROGRAM, Process, Running, folder, free_port},
};

/// The servers, and the Redis server of each.
pub struct Servers(Vec<(&'static str, Rls)>);

struct Rls {
    server: Process,
    redis: Process,
    _running: (Running, Server),
}

pub const CASES: [(&str, Traffic); 3] = [
    ("RLS on Redis, 100k", UNIFORM),
    ("RLS on Redis, one key", HOT),
    ("RLS on Redis, denied", DENIED),
];

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
    pub fn start() -> io::Result<Self> {
        let peer = env::var_os(PEER);
        if peer.is_none() {
            eprintln!("RLS on Redis: {PEER} is not set, so envoyproxy/ratelimit is not measured");
        }
        let mut servers = Vec::new();
        for (names, settings) in [(DEFAULT, &[][..]), (TUNED, &TUNING[..])] {
            let mut command = Command::new(PROGRAM);
            servers.push((names[0], Rls::start(command.arg("serve"), names[0], settings)?));
            if let Some(peer) = &peer {
                let mut command = Command::new(peer);
                servers.push((names[1], Rls::start(&mut command, names[1], settings)?));
            }
        }
        Ok(Self(servers))
    }

    pub fn subjects(&self, traffic: Traffic) -> Vec<Subject> {
        let subject = |(name, rls): &(&'static str, Rls)| -> Subject {
            let (server, redis) = (rls.server.clone(), Some(rls.redis.clone()));
            let protocol = Protocol::Grpc;
            (name, Box::new(Generator { traffic, protocol, server, redis }))
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
        for (domain, amount) in DOMAINS {
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
