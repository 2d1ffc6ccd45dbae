//! More and more servers on one Redis, with the same total traffic.

use std::{fs, io, process::Command, thread};

use pacegate_testkit::servers::{Flavor, Server};

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

const COUNTS: [usize; 3] = [1, 3, 10];
/// Requests per second of all servers together: what ten servers on two CPUs can serve.
const RATE: usize = 6_000;

/// The costs of a slice, per decision and in microseconds.
struct Slice {
    redis: f64,
    servers: f64,
    p99: f64,
}

pub fn rows(rounds: usize, seconds: f64) -> io::Result<Vec<Row>> {
    eprintln!("servers, {rounds} rounds");
    let redis = Server::start(Flavor::Redis);
    let process = Process { address: redis.address(), pid: redis.pid() };
    let mut servers = Vec::new();
    for n in 0..COUNTS[COUNTS.len() - 1] {
        servers.push(start(n, &redis.url())?);
    }
    let servers: Vec<&Process> = servers.iter().map(|(_, process)| process).collect();
    let slices: [Vec<Slice>; COUNTS.len()] =
        interleave(rounds, |which| slice(&servers[..COUNTS[which]], &process, seconds))?;
    let mut rows = Vec::new();
    for (count, own) in COUNTS.iter().zip(&slices) {
        let (case, name) = ("servers on one Redis", count.to_string());
        let [redis, smallest] = [own, &slices[0]].map(|slices| column(slices, |slice| slice.redis));
        rows.push(row(case, &name, "Redis CPU us per decision", redis.clone()));
        rows.push(ratio(case, &name, GROWTH, &redis, &smallest, None));
        let cpu = column(own, |slice| slice.servers);
        rows.push(row(case, &name, "server CPU us per decision", cpu));
        rows.push(row(case, &name, "p99 in us", column(own, |slice| slice.p99)));
    }
    Ok(rows)
}

fn start(n: usize, redis: &str) -> io::Result<(Running, Process)> {
    let name = format!("scale-{n}");
    let config = folder(&name)?.join("pacegate.yaml");
    let store =
        format!("store: {{url: \"{redis}\", deadline: 10s}}\nlisten: {{grpc: off, resp: off}}\n");
    fs::write(
        &config,
        format!("{store}policies:\n  - {{name: users, per: [user], limit: 1000000000/day}}\n"),
    )?;
    let (running, [http, ..]) = start_pacegate(&name, &config, 1, &["--http"])?;
    let http = http.ok_or_else(|| io::Error::other("no HTTP listener"))?;
    Ok((running, http))
}

/// Divides the traffic between the servers.
fn slice(servers: &[&Process], redis: &Process, seconds: f64) -> io::Result<Slice> {
    let cpu = || -> io::Result<(u64, u64)> {
        let all = servers.iter().map(|server| server.cpu_nanos()).sum::<io::Result<u64>>()?;
        Ok((redis.cpu_nanos()?, all))
    };
    let before = cpu()?;
    let reports = thread::scope(|scope| {
        let running: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(|| run(&mut command(server, RATE / servers.len(), seconds))))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let after = cpu()?;
    let requests: f64 = reports.iter().map(|report| report.requests).sum();
    let each = |before: u64, after: u64| (after - before) as f64 / 1e3 / requests;
    Ok(Slice {
        redis: each(before.0, after.0),
        servers: each(before.1, after.1),
        p99: reports.iter().map(|report| report.p99).fold(0.0, f64::max),
    })
}

fn command(server: &Process, rate: usize, seconds: f64) -> Command {
    let mut command = load(&format!("http://{}", server.address), "1000000000/day", seconds);
    command.args(["--attribute", "user", "-c", "64", "--rate", &rate.to_string()]);
    command
}
