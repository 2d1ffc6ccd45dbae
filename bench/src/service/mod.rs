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
pub mod load;
pub mod processes;
mod rls;

use std::io;

use self::{
    load::{Grpc, Http, Load, Resp, Slice, Stretch},
    processes::{Pacegate, Servers},
};
use crate::{report::Row, row};

pub use constant::{asked_to_serve, serve};

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
const CPU: &str = "server CPU, relative to";
const P99: &str = "p99, relative to";

const BARS: [Bar; 9] = [
    Bar { case: "RESP P1", than: INCR, metric: CPU, at_most: 1.0 },
    Bar { case: "RESP P1", than: THROTTLECRAB, metric: CPU, at_most: 0.65 },
    Bar { case: "RESP P16", than: INCR, metric: CPU, at_most: 0.6 },
    Bar { case: "RESP P64", than: INCR, metric: CPU, at_most: 0.5 },
    Bar { case: "RESP P64", than: THROTTLECRAB, metric: CPU, at_most: 1.0 / 8.0 },
    Bar { case: "RESP P64", than: SEED, metric: CPU, at_most: 1.0 / 15.0 },
    Bar { case: "RESP P64", than: INCR, metric: P99, at_most: 1.0 },
    Bar { case: "HTTP", than: THROTTLECRAB, metric: CPU, at_most: 1.0 },
    Bar { case: "gRPC", than: THROTTLECRAB, metric: CPU, at_most: 1.0 },
];

/// Runs all cases, or only "RLS on Redis". `ours` is false to test the harness without Pacegate.
pub fn rows(quick: bool, ours: bool, only_rls: bool) -> io::Result<Vec<Row>> {
    let (rounds, seconds) = if quick { (3, 0.7) } else { (11, 1.5) };
    let rls = rls::Servers::start(ours)?;
    let mut rls_rows = Vec::new();
    for case in rls::CASES {
        rls_rows.extend(measure(case.name, &rls.subjects(&case), rounds, seconds)?);
    }
    drop(rls);
    if only_rls {
        return Ok(rls_rows);
    }
    let servers = Servers::start(ours)?;
    let mut rows = exact::over_admitted(&servers)?;
    for pipeline in [1, 16, 64] {
        let case = format!("RESP P{pipeline}");
        rows.extend(measure(&case, &resp(&servers, pipeline), rounds, seconds)?);
    }
    rows.extend(measure("HTTP", &http(&servers), rounds, seconds)?);
    rows.extend(measure("gRPC", &grpc(&servers), rounds, seconds)?);
    rows.extend(rls_rows);
    Ok(rows)
}

fn resp(servers: &Servers, pipeline: usize) -> Vec<Subject> {
    let ask = |process: &processes::Process, words: &str| -> Box<dyn Load> {
        Box::new(Resp::new(process, pipeline, words))
    };
    // A burst of 100 per key, and 1,000 per minute.
    let throttle = "THROTTLE key:__rand_int__ 100 1000 60 1";
    let script = format!("EVALSHA {} 1 key:__rand_int__ 60 1000", servers.script);
    let mut subjects = Vec::new();
    if let Some(Pacegate { resp, .. }) = &servers.pacegate {
        subjects.push(("pacegate THROTTLE", ask(resp, throttle)));
        subjects.push(("pacegate CL.THROTTLE", ask(resp, &format!("CL.{throttle}"))));
    }
    subjects.push((INCR, ask(&servers.redis, "INCR key:__rand_int__")));
    subjects.push((SEED, ask(&servers.redis, &script)));
    subjects.push((THROTTLECRAB, ask(&servers.throttlecrab.resp, throttle)));
    subjects.push((CONSTANT, ask(&servers.constant, throttle)));
    subjects
}

fn http(servers: &Servers) -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Vec::new();
    if let Some(Pacegate { http, .. }) = &servers.pacegate {
        let body = r#"{"attributes":{"user":"user@"}}"#;
        subjects.push(("pacegate", Box::new(Http::new(http, "/v1/check", body))));
    }
    let body = r#"{"key":"user@","max_burst":100,"count_per_period":60000,"period":60}"#;
    let http = Http::new(&servers.throttlecrab.http, "/throttle", body);
    subjects.push((THROTTLECRAB, Box::new(http)));
    subjects
}

fn grpc(servers: &Servers) -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Vec::new();
    if let Some(Pacegate { grpc, .. }) = &servers.pacegate {
        subjects.push(("pacegate", Box::new(Grpc::pacegate(grpc, "edge"))));
    }
    let grpc = Grpc::throttlecrab(&servers.throttlecrab.grpc);
    subjects.push((THROTTLECRAB, Box::new(grpc)));
    subjects
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
            rows.push(row(case, name, "Redis CPU us per decision", redis));
        }
        rows.push(row(case, name, "decisions per second", column(|slice| slice.rate)));
        let p99: Vec<f64> = own.iter().filter_map(|slice| slice.p99).collect();
        if !p99.is_empty() {
            rows.push(row(case, name, "p99 in us", p99));
        }
        if name.starts_with("pacegate") || *name == CONSTANT {
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
        let bar = |metric| {
            if rls::is_peer(other) {
                return Some(if metric == CPU { 1.0 / 3.0 } else { 0.5 });
            }
            let is_it = |bar: &&Bar| (bar.case, bar.than, bar.metric) == (case, *other, metric);
            BARS.iter().find(is_it).filter(|_| name != CONSTANT).map(|bar| bar.at_most)
        };
        let of = |metric: &str| format!("{metric} {other}");
        let cpu = row(case, name, of(CPU), ratio(|slice| slice.cpu));
        rows.push(Row { bar: bar(CPU), ..cpu });
        if *other == INCR || rls::is_peer(other) {
            let p99 = row(case, name, of(P99), ratio(|slice| slice.p99.unwrap_or_default()));
            rows.push(Row { bar: bar(P99), ..p99 });
        }
    }
    rows
}
