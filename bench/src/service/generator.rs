//! `pacegate bench` as a load generator, because h2load sends only one key.

use std::{io, process::Command};

use serde_json::Value;

use super::{
    load::{Load, Slice, Stretch, strange},
    processes::{PROGRAM, Process},
};

/// A kind of load.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub domain: &'static str,
    pub limit: &'static str,
    pub keys: &'static str,
    /// The number of requests in flight.
    pub in_flight: u32,
}

/// A protocol, as the scheme of an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// Load on one server.
pub struct Generator {
    pub traffic: Traffic,
    pub protocol: Protocol,
    pub server: Process,
    /// The Redis server that it uses, if any.
    pub redis: Option<Process>,
}

/// The number of gRPC calls in flight on each connection. HTTP has one request in flight on each.
const STREAMS: u32 = 16;

const ALLOWED: &str = "1000000000/day";
pub const UNIFORM: Traffic =
    Traffic { domain: "allow", limit: ALLOWED, keys: "uniform:100000", in_flight: 256 };
pub const HOT: Traffic = Traffic { domain: "allow", limit: ALLOWED, keys: "hot", in_flight: 64 };
pub const DENIED: Traffic =
    Traffic { domain: "deny", limit: "1/day", keys: "uniform:100", in_flight: 64 };

/// The domains of the traffic, and their limits per user and day.
pub const DOMAINS: [(&str, &str); 2] = [("allow", "1000000000"), ("deny", "1")];

impl Generator {
    fn command(&self, seconds: f64) -> Command {
        let Traffic { domain, limit, keys, in_flight } = self.traffic;
        let (scheme, connections, streams) = match self.protocol {
            Protocol::Http => ("http", in_flight, 1),
            Protocol::Grpc => ("grpc", in_flight / STREAMS, STREAMS),
        };
        let mut command = Command::new(PROGRAM);
        command.arg("bench").arg(format!("{scheme}://{}", self.server.address));
        command.args(["--domain", domain, "--attribute", "user", "--prefix", "k"]);
        command.args(["--limit", limit, "--keys", keys, "--json"]);
        command.args(["-c", &connections.to_string(), "-P", &streams.to_string()]);
        // Earlier slices used up a part of the limit, so nothing is checked here. The CPU time is that of the whole
        // slice, so it has no warm-up.
        command.args(["--check", "0", "--warm-up", "0s"]);
        command.args(["--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
        command
    }
}

impl Load for Generator {
    fn run(&self, Stretch { seconds, .. }: Stretch, _round: usize) -> io::Result<Slice> {
        let cpu = || -> io::Result<(u64, Option<u64>)> {
            let redis = self.redis.as_ref().map(Process::cpu_nanos).transpose()?;
            Ok((self.server.cpu_nanos()?, redis))
        };
        let before = cpu()?;
        let Report { requests, rate, p99 } = run(&mut self.command(seconds))?;
        let after = cpu()?;
        let each = |before: u64, after: u64| (after - before) as f64 / 1e3 / requests;
        let redis_cpu = before.1.zip(after.1).map(|(before, after)| each(before, after));
        Ok(Slice { rate, p99: Some(p99), cpu: each(before.0, after.0), redis_cpu })
    }
}

/// The result of a run of `pacegate bench`.
pub struct Report {
    pub requests: f64,
    /// Decisions per second.
    pub rate: f64,
    /// In microseconds.
    pub p99: f64,
}

/// Runs `pacegate bench`. Failed requests are an error.
pub fn run(command: &mut Command) -> io::Result<Report> {
    let output = command.output()?;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let number = |field: &Value| field.as_f64().filter(|number| *number > 0.0);
    let (Some(requests), Some(rate), Some(p99), Some(0)) = (
        number(&report["requests"]),
        number(&report["per_second"]),
        number(&report["latency"]["p99"]),
        report["failed"].as_u64(),
    ) else {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(strange(command, &format!("{report} {errors}")));
    };
    Ok(Report { requests, rate, p99: p99 * 1e6 })
}
