//! More and more servers on one Redis, with the same total traffic.

use std::{fs, io, process::Command, thread};

use pacegate_testkit::servers::{Flavor, Server};

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
    let mut slices = [const { Vec::new() }; COUNTS.len()];
    for round in 0..=rounds {
        for turn in 0..COUNTS.len() {
            let which = (round + turn) % COUNTS.len();
            let taken = slice(&servers[..COUNTS[which]], &process, seconds)?;
            // The first round is a warm-up.
            if round > 0 {
                slices[which].push(taken);
            }
        }
    }
    let mut rows = Vec::new();
    for (count, own) in COUNTS.iter().zip(&slices) {
        let (case, name) = ("servers on one Redis", count.to_string());
        let column = |of: fn(&Slice) -> f64, slices: &[Slice]| slices.iter().map(of).collect();
        let redis: [Vec<f64>; 2] =
            [own, &slices[0]].map(|slices| column(|slice| slice.redis, slices));
        rows.push(row(case, &name, "Redis CPU us per decision", redis[0].clone()));
        rows.push(ratio(case, &name, GROWTH, &redis[0], &redis[1], None));
        rows.push(row(
            case,
            &name,
            "server CPU us per decision",
            column(|slice| slice.servers, own),
        ));
        rows.push(row(case, &name, "p99 in us", column(|slice| slice.p99, own)));
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
    let mut command = Command::new(PROGRAM);
    command.args(["bench", &format!("http://{}", server.address), "--attribute", "user"]);
    command.args(["--limit", "1000000000/day", "--keys", "uniform:100000", "--prefix", "k"]);
    command.args(["-c", "64", "--rate", &rate.to_string(), "--check", "0", "--warm-up", "0s"]);
    command.args(["--json", "--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
    command
}
