//! One listener with more and more connections, each of which sends one command after the other.

use std::{fs, io, process::Command};

use super::GROWTH;
use crate::{
    report::Row,
    row,
    service::{
        generator::run,
        processes::{PROGRAM, Process, Running, folder, start_pacegate},
    },
    speed::ratio,
};

/// An open-file limit of 20,000 is enough for the largest number.
const COUNTS: [u32; 3] = [10, 1_000, 10_000];

pub fn rows(rounds: usize, seconds: f64) -> io::Result<Vec<Row>> {
    eprintln!("connections, {rounds} rounds");
    let config = folder("connections")?.join("pacegate.yaml");
    fs::write(&config, "listen: {http: off, grpc: off}\nbounds: {connections: 15000}\n")?;
    // One server for each number, because the memory of closed connections may stay with the process.
    let mut servers: Vec<(Running, Process)> = Vec::new();
    for count in COUNTS {
        servers.push(start_resp(&format!("connections-{count}"), &config)?);
    }
    let mut cpu = [const { Vec::new() }; COUNTS.len()];
    let mut p99 = cpu.clone();
    let mut memory = cpu.clone();
    for round in 0..=rounds {
        for turn in 0..COUNTS.len() {
            let which = (round + turn) % COUNTS.len();
            let server = &servers[which].1;
            let before = server.cpu_nanos()?;
            let report = run(&mut command(server, COUNTS[which], seconds))?;
            // The first round is a warm-up.
            if round > 0 {
                let nanos = (server.cpu_nanos()? - before) as f64;
                cpu[which].push(nanos / 1e3 / report.requests);
                p99[which].push(report.p99);
                memory[which].push(server.peak_memory()? as f64 / f64::from(1 << 20));
            }
        }
    }
    let mut rows = Vec::new();
    for (which, count) in COUNTS.iter().enumerate() {
        let (case, name) = ("connections", count.to_string());
        rows.push(row(case, &name, "server CPU us per decision", cpu[which].clone()));
        rows.push(ratio(case, &name, GROWTH, &cpu[which], &cpu[0], None));
        rows.push(row(case, &name, "p99 in us", p99[which].clone()));
        rows.push(row(case, &name, "peak memory of the server in MiB", memory[which].clone()));
    }
    Ok(rows)
}

/// Starts a server with only one listener.
fn start_resp(name: &str, config: &std::path::Path) -> io::Result<(Running, Process)> {
    let (running, [_, _, resp]) = start_pacegate(name, config, 1, &["--resp"])?;
    let resp = resp.ok_or_else(|| io::Error::other("no RESP listener"))?;
    Ok((running, resp))
}

fn command(server: &Process, connections: u32, seconds: f64) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", &format!("resp://{}", server.address), "--dialect", "throttle"]);
    command.args(["--limit", "1000000/second", "--keys", "uniform:100000", "--prefix", "k"]);
    command.args(["-c", &connections.to_string(), "--check", "0", "--warm-up", "0s", "--json"]);
    command.args(["--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
    command
}
