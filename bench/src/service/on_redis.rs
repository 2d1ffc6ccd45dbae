//! Cases "on Redis": Pacegate's server with counters on Redis, compared with the same server in memory.

use std::{fs, io};

use pacegate_testkit::servers::{Flavor, Server};

use super::{
    IN_MEMORY, Subject,
    generator::{DENIED, DOMAINS, Generator, HOT, Protocol, Traffic, UNIFORM},
    processes::{Pacegate, Process, Running, folder},
};

pub struct Servers {
    on_redis: Pacegate,
    in_memory: Pacegate,
    redis: Process,
    _running: [Running; 2],
    _redis: Server,
}

pub struct Case {
    pub name: &'static str,
    protocol: Protocol,
    traffic: Traffic,
}

pub const CASES: [Case; 6] = [
    Case { name: "gRPC on Redis, 100k", protocol: Protocol::Grpc, traffic: UNIFORM },
    Case { name: "gRPC on Redis, one key", protocol: Protocol::Grpc, traffic: HOT },
    Case { name: "gRPC on Redis, denied", protocol: Protocol::Grpc, traffic: DENIED },
    Case { name: "HTTP on Redis, 100k", protocol: Protocol::Http, traffic: UNIFORM },
    Case { name: "HTTP on Redis, one key", protocol: Protocol::Http, traffic: HOT },
    Case { name: "HTTP on Redis, denied", protocol: Protocol::Http, traffic: DENIED },
];

impl Servers {
    /// Starts both servers with one worker thread and the same policies.
    pub fn start() -> io::Result<Self> {
        let redis = Server::start(Flavor::Redis);
        let mut policies = "policies:\n".to_owned();
        for (domain, amount) in DOMAINS {
            policies += &format!(
                "  - {{name: {domain}, domain: {domain}, per: [user], limit: {amount}/day}}\n"
            );
        }
        let start = |name: &str, store: &str| -> io::Result<(Running, Pacegate)> {
            let config = folder(name)?.join("pacegate.yaml");
            // A long deadline, so that no failure mode applies on a busy machine.
            fs::write(&config, format!("{store}{policies}"))?;
            Pacegate::start(name, &config, 1)
        };
        let url = redis.url();
        let store = format!("store: {{url: \"{url}\", deadline: 10s}}\n");
        let (first, on_redis) = start("on-redis", &store)?;
        let (second, in_memory) = start("in-memory", "")?;
        let process = Process { address: redis.address(), pid: redis.pid() };
        let _running = [first, second];
        Ok(Self { on_redis, in_memory, redis: process, _running, _redis: redis })
    }

    pub fn subjects(&self, Case { protocol, traffic, .. }: &Case) -> Vec<Subject> {
        let generator = |pacegate: &Pacegate, redis: Option<&Process>| {
            let server = match protocol {
                Protocol::Http => &pacegate.http,
                Protocol::Grpc => &pacegate.grpc,
            };
            let (server, redis) = (server.clone(), redis.cloned());
            Box::new(Generator { traffic: *traffic, protocol: *protocol, server, redis })
        };
        vec![
            ("pacegate", generator(&self.on_redis, Some(&self.redis))),
            (IN_MEMORY, generator(&self.in_memory, None)),
        ]
    }
}
