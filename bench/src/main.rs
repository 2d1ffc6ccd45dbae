//! `cargo xtask bench engine`: Pacegate and its peers in one process, in interleaved rounds. `cargo xtask bench redis`:
//! the store on Redis against the two ways that everybody else takes. `cargo xtask bench service`: the service beside
//! other servers. `cargo xtask bench http`: the middleware beside other middleware. `cargo xtask bench machine`: what
//! the machine itself takes.
//!
//! Every subject is asked the same questions in the same order. A round asks each of them in turn, starting with
//! another one each time, in slices of a few thousand questions: on a machine that is shared with others, most slices
//! pass undisturbed, and the median over the rounds is one of those.

mod http;
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

fn main() -> std::io::Result<()> {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    let quick = has("--quick");
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
        let mut words = std::env::args().skip_while(|word| word != "--case").skip(1);
        let only = words.next().unwrap_or_default();
        let rows = redis::rows(if quick { 3 } else { 11 }, &only);
        report::print(&rows);
        return report::write(&rows, std::path::Path::new("target/bench/redis.json"));
    }
    if has("service") {
        // `--peers` tries the harness without our own server.
        let rows = service::rows(quick, !has("--peers"))?;
        report::print(&rows);
        return report::write(&rows, std::path::Path::new("target/bench/service.json"));
    }
    let rounds = if quick { 5 } else { 21 };
    if has("machine") {
        report::print(&machine::loads(rounds));
        return Ok(());
    }
    let mut rows = Vec::new();
    rows.extend(speed::over_admitted());
    rows.extend(speed::checks(rounds));
    rows.extend(memory::bytes_per_key());
    report::print(&rows);
    report::write(&rows, std::path::Path::new("target/bench/engine.json"))
}

/// One figure of one subject in one case, over all rounds.
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
