//! `cargo xtask bench engine`: Tollgate and its peers in one process, in interleaved rounds.
//!
//! Every subject is asked the same questions in the same order. A round asks each of them in turn, starting with
//! another one each time, in slices of a few thousand questions: on a machine that is shared with others, most slices
//! pass undisturbed, and the median over the rounds is one of those.

mod memory;
mod report;
mod speed;
mod subjects;
mod traffic;

use report::Row;

fn main() -> std::io::Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let mut rows = Vec::new();
    rows.extend(speed::over_admitted());
    rows.extend(speed::checks(if quick { 5 } else { 21 }));
    rows.extend(memory::bytes_per_key());
    report::print(&rows);
    report::write(&rows, std::path::Path::new("target/bench/engine.json"))
}

/// One figure of one subject in one case, over all rounds.
fn row(case: &str, subject: &str, metric: &'static str, mut values: Vec<f64>) -> Row {
    values.sort_by(f64::total_cmp);
    Row {
        case: case.to_owned(),
        subject: subject.to_owned(),
        metric,
        median: values[values.len() / 2],
        min: values[0],
        max: values[values.len() - 1],
        rounds: values.len(),
    }
}
