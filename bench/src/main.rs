//! `cargo xtask bench engine`: Pacegate and other libraries in one process. `cargo xtask bench redis`: the
//! Redis store compared with the two common approaches. `cargo xtask bench service`: the server compared with
//! other servers. `cargo xtask bench http`: the middleware compared with other middleware. `cargo xtask bench
//! scale`: growth with keys, policies, connections and servers. `cargo xtask bench machine`: the costs of the machine
//! itself.
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
mod scale;
mod service;
mod speed;
mod subjects;
mod tables;
mod traffic;

use std::{borrow::Cow, io};

use report::Row;
use traffic::{Keys, Zipf};

/// The options of a run.
pub struct Options {
    /// Fewer and shorter rounds.
    quick: bool,
    /// Only the cases whose names contain this.
    only: String,
}

impl Options {
    fn new() -> Self {
        let mut words = std::env::args().skip_while(|word| word != "--only").skip(1);
        let only = words.next().unwrap_or_default();
        Self { quick: std::env::args().any(|word| word == "--quick"), only }
    }

    /// Returns true if a case should be run.
    pub fn includes(&self, case: &str) -> bool {
        case.contains(&self.only)
    }

    /// Returns the first value for a quick run, and otherwise the second.
    pub fn quick_or<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

fn main() -> io::Result<()> {
    if let Some(subject) = http::asked_to_serve() {
        return http::serve(&subject);
    }
    if let Some(server) = service::asked_to_serve() {
        return server.serve();
    }
    let options = Options::new();
    let name = std::env::args().nth(1).unwrap_or_default();
    let rows = match &*name {
        "engine" => engine(&options),
        "http" => http::rows(&options)?,
        "machine" => machine::loads(options.quick_or(5, 21)),
        "redis" => redis::rows(&options),
        "scale" => scale::rows(&options)?,
        "service" => service::rows(&options)?,
        _ => return Err(io::Error::other(format!("unknown benchmark `{name}`"))),
    };
    report::print(&rows);
    print!("{}", tables::markdown(&name, &rows));
    report::write(&rows, &std::path::Path::new("target/bench").join(format!("{name}.json")))
}

fn engine(options: &Options) -> Vec<Row> {
    let rounds = options.quick_or(5, 21);
    let cases = ENGINE.iter().filter(|(name, _)| options.includes(name));
    cases.flat_map(|(_, measure)| measure(rounds)).collect()
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
