//! The Redis store compared with one script call per request, and with INCR and EXPIRE per request.
//!
//! All three use the same kind of connection, the same tasks and the same runtime. They are measured in
//! slices of a fraction of a second, in an order that rotates from round to round. The server itself reports
//! its CPU time.

mod load;
mod subjects;

use std::{sync::Arc, time::Duration};

use pacegate_testkit::servers::{Flavor, Server};

use self::{
    load::{Asked, Slice, slice},
    subjects::{NAMES, Subject, make, reserving},
};
use crate::{Options, report::Row, row, traffic::Keys};

/// Length of a slice.
const STRETCH: Duration = Duration::from_millis(250);
/// Number of concurrent tasks, unless a case has another.
const TASKS: usize = 512;
const PLENTY: u32 = 1_000_000_000;
/// Target of issue 18: the server's CPU time of `reserve` and `settle`, relative to a check.
const MAX_RESERVATION: f64 = 1.8;

struct Case {
    name: &'static str,
    keys: fn() -> Keys,
    tasks: usize,
    limit: u32,
    /// Share of the limit that the store may lease, in percent.
    lease: u8,
    /// Target of issue 19: the maximum CPU time of the server per decision, in microseconds.
    max_cpu: Option<f64>,
}

const HOT: Case = Case {
    name: "hot key",
    keys: || Keys::One,
    tasks: TASKS,
    limit: PLENTY,
    lease: 0,
    max_cpu: None,
};

const CASES: [Case; 6] = [
    HOT,
    Case { name: "hot key, 64 tasks", tasks: 64, max_cpu: Some(1.6), ..HOT },
    Case { name: "hot, leased", lease: 1, ..HOT },
    Case { name: "10k uniform", keys: || Keys::Uniform(10_000), ..HOT },
    Case {
        name: "100k uniform, 256 tasks",
        keys: || Keys::Uniform(100_000),
        tasks: 256,
        max_cpu: Some(5.0),
        ..HOT
    },
    Case { name: "denied flood", limit: 100, ..HOT },
];

pub fn rows(options: &Options) -> Vec<Row> {
    let rounds = options.quick_or(5, 11);
    let mut rows = Vec::new();
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        rows.extend(runtime(2).block_on(over_admitted(&server)));
        for case in CASES.iter().filter(|case| options.includes(case.name)) {
            for threads in [1, 2] {
                rows.extend(runtime(threads).block_on(measure(&server, case, threads, rounds)));
            }
        }
        if options.includes("reservations") {
            rows.extend(runtime(1).block_on(reservations(&server, rounds)));
        }
    }
    rows
}

/// Creates the runtime of the tasks; it shares the CPUs with the server.
fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().expect("create a runtime")
}

/// Measures every subject once per round, starting with the next one each time.
async fn measure(server: &Server, case: &Case, threads: usize, rounds: usize) -> Vec<Row> {
    let name = format!("{} {} {threads}t", server.flavor(), case.name);
    eprintln!("{name}, {rounds} rounds");
    let keys = Arc::new(Asked::new((case.keys)()));
    let mut subjects = Vec::new();
    for which in NAMES {
        subjects.push(make(which, server, case.limit, case.lease).await);
    }
    let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); NAMES.len()];
    for round in 0..=rounds {
        for turn in 0..NAMES.len() {
            let which = (round + turn) % NAMES.len();
            let taken = slice(&subjects[which], server, &keys, (case.tasks, STRETCH)).await;
            // The first round is a warm-up.
            if round > 0 {
                slices[which].push(taken);
            }
        }
    }
    report(&name, case.max_cpu, &slices)
}

/// Compares the server's CPU time of a reservation and its settlement with that of a check. Both are one call each.
async fn reservations(server: &Server, rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (text, keys) in [
        ("fixed-window", Keys::One),
        ("fixed-window", Keys::Uniform(10_000)),
        ("token-bucket", Keys::Uniform(10_000)),
    ] {
        let name = format!("{} reservations, {text}, {} keys", server.flavor(), keys.count());
        eprintln!("{name}, {TASKS} tasks, {rounds} rounds");
        let keys = Arc::new(Asked::new(keys));
        let limit = format!("{PLENTY}/hour {text}").parse().expect("valid limit");
        let subjects = reserving(server, limit).await;
        let mut cpu = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let taken = slice(&subjects[which], server, &keys, (TASKS, STRETCH)).await;
                if round > 0 {
                    cpu[which].push(taken.cpu / (1 + which) as f64);
                }
            }
        }
        let [checks, calls] = cpu;
        let ratios = calls.iter().zip(&checks).map(|(call, check)| call / check).collect();
        let metric = "server CPU, relative to a check";
        rows.push(row(&name, "check", "server CPU us per call", checks));
        rows.push(row(&name, "reserve or settle", "server CPU us per call", calls));
        let bar = Some(MAX_RESERVATION);
        rows.push(Row { bar, ..row(&name, "reserve or settle", metric, ratios) });
    }
    rows
}

fn report(case: &str, max_cpu: Option<f64>, slices: &[Vec<Slice>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, own) in NAMES.iter().zip(slices) {
        let column = |of: fn(&Slice) -> f64| own.iter().map(of).collect::<Vec<_>>();
        let ratio = |of: fn(&Slice) -> f64| {
            own.iter().zip(&slices[1]).map(|(own, a)| of(own) / of(a)).collect::<Vec<_>>()
        };
        rows.push(row(case, name, "decisions per second", column(|slice| slice.rate)));
        rows.push(row(case, name, "decisions, relative to (a)", ratio(|slice| slice.rate)));
        rows.push(row(case, name, "p50 in us", column(|slice| slice.p50)));
        rows.push(row(case, name, "p99 in us", column(|slice| slice.p99)));
        rows.push(row(case, name, "p99, relative to (a)", ratio(|slice| slice.p99)));
        let bar = max_cpu.filter(|_| *name == NAMES[0]);
        let cpu = row(case, name, "server CPU us per decision", column(|slice| slice.cpu));
        rows.push(Row { bar, ..cpu });
        rows.push(row(case, name, "server CPU, relative to (a)", ratio(|slice| slice.cpu)));
    }
    rows
}

/// All tasks request one key with a limit of 100. Reports the worst of several new keys.
async fn over_admitted(server: &Server) -> Vec<Row> {
    let mut rows = Vec::new();
    for (which, lease) in NAMES.map(|name| (name, 0)).into_iter().chain([(NAMES[0], 5)]) {
        let subject = make(which, server, 100, lease).await;
        let mut over = Vec::new();
        for round in 0..20 {
            let tasks = (0..TASKS).map(|_| {
                let (subject, key) = (subject.clone(), format!("over:{which}:{lease}:{round}"));
                tokio::spawn(async move { u32::from(subject.check(&key).await) })
            });
            let mut admitted = 0;
            for task in tasks.collect::<Vec<_>>() {
                admitted += task.await.expect("no panic");
            }
            over.push((f64::from(admitted) - 100.0).max(0.0));
        }
        rows.push(row(
            &format!("{} 100{}", server.flavor(), if lease > 0 { ", leased" } else { "" }),
            which,
            "over-admitted",
            over,
        ));
    }
    rows
}
