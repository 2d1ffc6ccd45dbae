//! The server compared with other servers, with standard load generators: redis-benchmark, wrk and h2load.
//!
//! The result is the CPU time of the server process per decision, because the generator and the server share
//! the CPUs. All servers run all the time. A round measures each of them for a while, in an order that
//! rotates from round to round, and ratios are computed per round.
//!
//! Over RESP and HTTP, the keys are drawn from 100,000. h2load sends only one body, so over gRPC each slice
//! has a single key. This is the same for all servers, and the difference is one cache miss within the ten
//! microseconds of a call.

mod constant;
mod exact;
pub mod generator;
pub mod load;
mod on_redis;
pub mod processes;
mod rls;

use std::io;

use self::{
    load::{Grpc, Http, Load, Resp, Slice, Stretch},
    processes::{Pacegate, Process, Servers},
};
use crate::{Options, report::Row, row};

pub use constant::asked_to_serve;

const KEYS: u32 = 100_000;

/// One subject of a case: its name and its load generator.
type Subject = (&'static str, Box<dyn Load>);

/// A target: a maximum ratio compared with another subject.
struct Bar {
    case: &'static str,
    than: &'static str,
    metric: &'static str,
    at_most: f64,
}

const INCR: &str = "redis INCR";
const SEED: &str = "redis seed's script";
const THROTTLECRAB: &str = "throttlecrab";
/// The minimum that is possible.
const CONSTANT: &str = "constant response";
/// The same with connections that stay on one of two threads.
const PINNED: &str = "constant response, pinned";
const IN_MEMORY: &str = "the same in memory";
const CPU: &str = "server CPU, relative to";
const P99: &str = "p99, relative to";

const BARS: [Bar; 11] = [
    Bar { case: "RESP P1", than: INCR, metric: CPU, at_most: 0.9 },
    Bar { case: "RESP P1", than: THROTTLECRAB, metric: CPU, at_most: 0.65 },
    Bar { case: "RESP P16", than: INCR, metric: CPU, at_most: 0.6 },
    Bar { case: "RESP P16", than: INCR, metric: P99, at_most: 1.0 },
    Bar { case: TWO_WORKERS, than: INCR, metric: P99, at_most: 1.0 },
    Bar { case: "RESP P64", than: INCR, metric: CPU, at_most: 0.5 },
    Bar { case: "RESP P64", than: THROTTLECRAB, metric: CPU, at_most: 1.0 / 8.0 },
    Bar { case: "RESP P64", than: SEED, metric: CPU, at_most: 1.0 / 15.0 },
    Bar { case: "RESP P64", than: INCR, metric: P99, at_most: 1.0 },
    Bar { case: "HTTP", than: THROTTLECRAB, metric: CPU, at_most: 0.6 },
    Bar { case: "gRPC", than: THROTTLECRAB, metric: CPU, at_most: 0.5 },
];

/// The cases of the servers in memory.
const CASES: [(&str, fn(&Servers) -> Vec<Subject>); 6] = [
    ("RESP P1", |servers| resp(servers, 1)),
    ("RESP P16", |servers| resp(servers, 16)),
    (TWO_WORKERS, two_workers),
    ("RESP P64", |servers| resp(servers, 64)),
    ("HTTP", http),
    ("gRPC", grpc),
];
const TWO_WORKERS: &str = "RESP P16, 2 workers";
/// A burst of 100 per key, and 1,000 per minute.
const THROTTLE: &str = "THROTTLE key:__rand_int__ 100 1000 60 1";

pub fn rows(options: &Options) -> io::Result<Vec<Row>> {
    let (rounds, seconds) = options.quick_or((5, 0.6), (11, 1.0));
    let mut rows = Vec::new();
    if CASES.iter().any(|(name, _)| options.includes(name)) {
        let servers = Servers::start()?;
        rows.extend(exact::over_admitted(&servers)?);
        for (name, subjects) in CASES.iter().filter(|(name, _)| options.includes(name)) {
            rows.extend(measure(name, &subjects(&servers), rounds, seconds)?);
        }
    }
    let cases = || on_redis::CASES.iter().filter(|case| options.includes(case.name));
    if cases().next().is_some() {
        let servers = on_redis::Servers::start()?;
        for case in cases() {
            rows.extend(measure(case.name, &servers.subjects(case), rounds, seconds)?);
        }
    }
    let cases = || rls::CASES.iter().filter(|(name, _)| options.includes(name));
    if cases().next().is_some() {
        let servers = rls::Servers::start()?;
        for (name, traffic) in cases() {
            rows.extend(measure(name, &servers.subjects(*traffic), rounds, seconds)?);
        }
    }
    Ok(rows)
}

fn resp(servers: &Servers, pipeline: usize) -> Vec<Subject> {
    let ask = |process: &Process, words: &str| -> Box<dyn Load> {
        Box::new(Resp::new(process, pipeline, words))
    };
    let script = format!("EVALSHA {} 1 key:__rand_int__ 60 1000", servers.script);
    let Pacegate { resp, .. } = &servers.pacegate;
    vec![
        ("pacegate THROTTLE", ask(resp, THROTTLE)),
        ("pacegate CL.THROTTLE", ask(resp, &format!("CL.{THROTTLE}"))),
        (INCR, ask(&servers.redis, "INCR key:__rand_int__")),
        (SEED, ask(&servers.redis, &script)),
        (THROTTLECRAB, ask(&servers.throttlecrab.resp, THROTTLE)),
        (CONSTANT, ask(&servers.constant.resp, THROTTLE)),
    ]
}

fn two_workers(servers: &Servers) -> Vec<Subject> {
    let incr = Resp::new(&servers.redis, 16, "INCR key:__rand_int__");
    let throttle = Resp::new(&servers.two_workers.resp, 16, THROTTLE);
    let stealing = Resp::new(&servers.constant.stealing, 16, THROTTLE);
    let pinned = Resp::new(&servers.constant.pinned, 16, THROTTLE);
    vec![
        ("pacegate THROTTLE", Box::new(throttle)),
        (INCR, Box::new(incr)),
        (CONSTANT, Box::new(stealing)),
        (PINNED, Box::new(pinned)),
    ]
}

fn http(servers: &Servers) -> Vec<Subject> {
    let body = r#"{"attributes":{"user":"user@"}}"#;
    let ours = Http::new(&servers.pacegate.http, "/v1/check", body);
    let body = r#"{"key":"user@","max_burst":100,"count_per_period":60000,"period":60}"#;
    let theirs = Http::new(&servers.throttlecrab.http, "/throttle", body);
    let constant = Http::new(&servers.constant.http, "/", body);
    vec![
        ("pacegate", Box::new(ours)),
        (THROTTLECRAB, Box::new(theirs)),
        (CONSTANT, Box::new(constant)),
    ]
}

fn grpc(servers: &Servers) -> Vec<Subject> {
    let ours = Grpc::pacegate(&servers.pacegate.grpc, "edge");
    let theirs = Grpc::throttlecrab(&servers.throttlecrab.grpc);
    let constant = Grpc::pacegate(&servers.constant.grpc, "edge");
    vec![
        ("pacegate", Box::new(ours)),
        (THROTTLECRAB, Box::new(theirs)),
        (CONSTANT, Box::new(constant)),
    ]
}

/// Measures every subject once per round, starting with the next one each time. The first round is a warm-up
/// and determines how much load fills the time.
fn measure(case: &str, subjects: &[Subject], rounds: usize, seconds: f64) -> io::Result<Vec<Row>> {
    eprintln!("{case}, {rounds} rounds");
    let mut stretches = Vec::new();
    for (_, load) in subjects {
        let tried = load.run(Stretch { decisions: 20_000, seconds: 1.0 }, 0)?;
        stretches.push(Stretch { decisions: (tried.rate * seconds) as u64, seconds });
    }
    let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); subjects.len()];
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let which = (round + turn) % subjects.len();
            slices[which].push(subjects[which].1.run(stretches[which], round + 1)?);
        }
    }
    Ok(report(case, subjects, &slices))
}

fn report(case: &str, subjects: &[Subject], slices: &[Vec<Slice>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((name, _), own) in subjects.iter().zip(slices) {
        let column = |of: fn(&Slice) -> f64| own.iter().map(of).collect::<Vec<_>>();
        rows.push(row(case, name, "server CPU us per decision", column(|slice| slice.cpu)));
        let redis: Vec<f64> = own.iter().filter_map(|slice| slice.redis_cpu).collect();
        if !redis.is_empty() {
            let bar = max_redis_cpu(case).filter(|_| name.starts_with("pacegate"));
            rows.push(Row { bar, ..row(case, name, "Redis CPU us per decision", redis) });
        }
        rows.push(row(case, name, "decisions per second", column(|slice| slice.rate)));
        let p99: Vec<f64> = own.iter().filter_map(|slice| slice.p99).collect();
        if !p99.is_empty() {
            rows.push(row(case, name, "p99 in us", p99));
        }
        if name.starts_with("pacegate") || name.starts_with(CONSTANT) {
            rows.extend(ratios(case, name, own, subjects, slices));
        }
    }
    rows
}

fn ratios(
    case: &str,
    name: &str,
    own: &[Slice],
    subjects: &[Subject],
    slices: &[Vec<Slice>],
) -> Vec<Row> {
    let is_other = |other: &str| {
        !other.starts_with("pacegate") && other != name && rls::has_same_settings(name, other)
    };
    let others = subjects.iter().zip(slices).filter(|((other, _), _)| is_other(other));
    let mut rows = Vec::new();
    for ((other, _), theirs) in others {
        let ratio = |of: fn(&Slice) -> f64| {
            own.iter().zip(theirs).map(|(own, theirs)| of(own) / of(theirs)).collect::<Vec<_>>()
        };
        let bar = |metric| max_ratio(case, other, metric).filter(|_| !name.starts_with(CONSTANT));
        let of = |metric: &str| format!("{metric} {other}");
        let cpu = row(case, name, of(CPU), ratio(|slice| slice.cpu));
        rows.push(Row { bar: bar(CPU), ..cpu });
        if *other == INCR || *other == IN_MEMORY || rls::is_peer(other) {
            let p99 = row(case, name, of(P99), ratio(|slice| slice.p99.unwrap_or_default()));
            rows.push(Row { bar: bar(P99), ..p99 });
        }
    }
    rows
}

/// Returns the target of Pacegate relative to another subject.
fn max_ratio(case: &str, than: &str, metric: &str) -> Option<f64> {
    match (than, metric) {
        (IN_MEMORY, CPU) => Some(1.6),
        (peer, CPU) if rls::is_peer(peer) => Some(1.0 / 3.0),
        (peer, _) if rls::is_peer(peer) => Some(0.5),
        _ => {
            let is_it = |bar: &&Bar| (bar.case, bar.than, bar.metric) == (case, than, metric);
            BARS.iter().find(is_it).map(|bar| bar.at_most)
        }
    }
}

/// Returns the target for the CPU time of Redis per decision, in microseconds: 256 requests in flight for many keys, 64
/// for one key.
fn max_redis_cpu(case: &str) -> Option<f64> {
    let targets = [("100k", 5.0), ("one key", 1.6)];
    targets.into_iter().find_map(|(part, target)| case.contains(part).then_some(target))
}
