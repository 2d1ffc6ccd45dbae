//! One listener with more and more connections, each of which sends one command after the other.

use std::{fs, io};

use super::{GROWTH, column, interleave, load};
use crate::{
    report::Row,
    row,
    service::{
        generator::run,
        processes::{Process, Running, folder, start_pacegate},
    },
    speed::ratio,
};

/// An open-file limit of 20,000 is enough for the largest number.
const COUNTS: [u32; 3] = [10, 1_000, 10_000];

/// The costs of a slice.
struct Slice {
    /// Microseconds per decision.
    cpu: f64,
    /// Microseconds.
    p99: f64,
    /// Peak of the server until now, in MiB.
    memory: f64,
}

pub fn rows(rounds: usize, seconds: f64) -> io::Result<Vec<Row>> {
    eprintln!("connections, {rounds} rounds");
    let config = folder("connections")?.join("pacegate.yaml");
    fs::write(&config, "listen: {http: off, grpc: off}\nbounds: {connections: 15000}\n")?;
    // One server for each number, because the memory of closed connections may stay with the process.
    let mut servers: Vec<(Running, Process)> = Vec::new();
    for count in COUNTS {
        servers.push(start_resp(&format!("connections-{count}"), &config)?);
    }
    let slices: [Vec<Slice>; COUNTS.len()] =
        interleave(rounds, |which| slice(&servers[which].1, COUNTS[which], seconds))?;
    let mut rows = Vec::new();
    for (count, own) in COUNTS.iter().zip(&slices) {
        let (case, name) = ("connections", count.to_string());
        let [cpu, smallest] = [own, &slices[0]].map(|slices| column(slices, |slice| slice.cpu));
        rows.push(row(case, &name, "server CPU us per decision", cpu.clone()));
        rows.push(ratio(case, &name, GROWTH, &cpu, &smallest, None));
        rows.push(row(case, &name, "p99 in us", column(own, |slice| slice.p99)));
        let memory = column(own, |slice| slice.memory);
        rows.push(row(case, &name, "peak memory of the server in MiB", memory));
    }
    Ok(rows)
}

/// Starts a server with only one listener.
fn start_resp(name: &str, config: &std::path::Path) -> io::Result<(Running, Process)> {
    let (running, [_, _, resp]) = start_pacegate(name, config, 1, &["--resp"])?;
    let resp = resp.ok_or_else(|| io::Error::other("no RESP listener"))?;
    Ok((running, resp))
}

fn slice(server: &Process, connections: u32, seconds: f64) -> io::Result<Slice> {
    let mut command = load(&format!("resp://{}", server.address), "1000000/second", seconds);
    command.args(["--dialect", "throttle", "-c", &connections.to_string()]);
    let before = server.cpu_nanos()?;
    let report = run(&mut command)?;
    let nanos = (server.cpu_nanos()? - before) as f64;
    Ok(Slice {
        cpu: nanos / 1e3 / report.requests,
        p99: report.p99,
        memory: server.peak_memory()? as f64 / f64::from(1 << 20),
    })
}
