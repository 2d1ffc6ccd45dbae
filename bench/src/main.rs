//! `cargo xtask bench engine`: Pacegate and other libraries in one process. `cargo xtask bench redis`: the
//! Redis store compared with the two common approaches. `cargo xtask bench service`: the server compared with
//! other servers. `cargo xtask bench http`: the middleware compared with other middleware. `cargo xtask bench
//! machine`: the costs of the machine itself.
//!
//! All subjects get the same requests in the same order. A round measures each of them, in an order that
//! rotates from round to round, in slices of a few thousand requests. On a shared machine, most slices are
//! undisturbed, and so is the median over the rounds.

mod http;
mod limits;
mod machine;
mod memory;
mod redis;
mod report;
mod service;
mod speed;
mod subjects;
mod traffic;

use std::borrow::Cow;

use report::Row;
use traffic::{Keys, Zipf};

fn main() -> std::io::Result<()> {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    let quick = has("--quick");
    // `--only NAME`: the cases of `engine` and `redis` whose names contain NAME.
    let mut words = std::env::args().skip_while(|word| word != "--only").skip(1);
    let only = words.next().unwrap_or_default();
    if let Some(subject) = http::asked_to_serve() {
        return http::serve(&subject);
    }
    if service::asked_to_serve() {
        return service::serve();
    }
    if has("http") {
        let rows = http::rows(quick)?;
        report::print(&rows);
        return report::write(&rows, std::path::Path::new("target/bench/http.json"));
    }
    if has("redis") {
        let rows = redis::rows(if quick { 3 } else { 11 }, &only);
        report::print(&rows);
        return report::write(&rows, std::path::Path::new("target/bench/redis.json"));
    }
    if has("service") {
        // `--peers` tests the harness without Pacegate, and `--rls` measures only that case.
        let rows = service::rows(quick, !has("--peers"), has("--rls"))?;
        report::print(&rows);
        return report::write(&rows, std::path::Path::new("target/bench/service.json"));
    }
    let rounds = if quick { 5 } else { 21 };
    if has("machine") {
        report::print(&machine::loads(rounds));
        return Ok(());
    }
    let cases = ENGINE.iter().filter(|(name, _)| name.contains(&only));
    let rows: Vec<_> = cases.flat_map(|(_, measure)| measure(rounds)).collect();
    report::print(&rows);
    report::write(&rows, std::path::Path::new("target/bench/engine.json"))
}

/// The cases of the engine by name, each as a function of the number of rounds.
const ENGINE: [(&str, fn(usize) -> Vec<Row>); 9] = [
    ("over-admitted", |_| speed::over_admitted()),
    ("hot key", |rounds| speed::checks("hot key", &Keys::One, rounds)),
    ("10k uniform", |rounds| speed::checks("10k uniform", &Keys::Uniform(10_000), rounds)),
    ("1M zipf", |rounds| speed::checks("1M zipf", &Keys::Zipf(Zipf::new(1_000_000)), rounds)),
    ("limits", limits::limits),
    ("policies", limits::policies),
    ("reservations", limits::reservations),
    ("empty limiter", limits::empty_limiter),
    ("memory", |_| memory::bytes_per_key()),
];

/// Creates a row: one metric of one subject in one case, over all rounds.
fn row(
    case: &str,
    subject: &str,
    metric: impl Into<Cow<'static, str>>,
    mut values: Vec<f64>,
) -> Row {
    values.sort_by(f64::total_cmp);
    Row {
        case: case.to_owned(),
        subject: subject.to_owned(),
        metric: metric.into(),
        median: values[values.len() / 2],
        min: values[0],
        max: values[values.len() - 1],
        rounds: values.len(),
        bar: None,
    }
}
