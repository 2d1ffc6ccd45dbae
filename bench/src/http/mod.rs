//! The middleware compared with other middleware, around a trivial handler, with wrk as the load generator.
//!
//! The result is the CPU time that a middleware adds: that of the server per request, minus that of the same
//! server without it. Each server is a separate process with one thread. A round measures each of them for a
//! while, in an order that rotates from round to round, and the differences are computed per round.

mod actix;
mod in_process;
mod load;
mod servers;

use std::io;

use self::load::{Keys, Load};
use crate::{
    Options,
    report::Row,
    row,
    service::processes::{Process, Running},
};

pub use servers::{asked_to_serve, serve};

/// A server without middleware and the servers to compare: Pacegate, the other middleware, and one that only
/// adds as many constant headers as Pacegate.
struct Case {
    name: &'static str,
    keys: Keys,
    bare: &'static str,
    ours: &'static str,
    theirs: &'static str,
    constant: &'static str,
    /// Target of issue 19: the maximum CPU time that Pacegate adds, relative to the other middleware.
    bar: f64,
}

/// The target with the same headers as the other middleware, and with five.
const SAME_HEADERS: f64 = 1.0;
const FIVE_HEADERS: f64 = 1.5;

const CASES: [Case; 6] = [
    Case {
        name: "axum, one peer",
        keys: Keys::One,
        bare: "axum",
        ours: "pacegate peer",
        theirs: "tower_governor peer",
        constant: "five headers",
        bar: FIVE_HEADERS,
    },
    // The other middleware adds two headers and Pacegate five: here Pacegate adds only those two.
    Case {
        name: "axum, same headers",
        keys: Keys::One,
        bare: "axum",
        ours: "pacegate same headers",
        theirs: "tower_governor peer",
        constant: "five headers",
        bar: SAME_HEADERS,
    },
    Case {
        name: "axum, 100k clients",
        keys: Keys::Many,
        bare: "axum",
        ours: "pacegate forwarded",
        theirs: "tower_governor forwarded",
        constant: "five headers",
        bar: FIVE_HEADERS,
    },
    Case {
        name: "actix-web, one peer",
        keys: Keys::One,
        bare: "actix",
        ours: "pacegate actix peer",
        theirs: "actix-governor peer",
        constant: "five headers actix",
        bar: FIVE_HEADERS,
    },
    Case {
        name: "actix-web, same headers",
        keys: Keys::One,
        bare: "actix",
        ours: "pacegate actix same headers",
        theirs: "actix-governor peer",
        constant: "five headers actix",
        bar: SAME_HEADERS,
    },
    Case {
        name: "actix-web, 100k clients",
        keys: Keys::Many,
        bare: "actix",
        ours: "pacegate actix forwarded",
        theirs: "actix-governor forwarded",
        constant: "five headers actix",
        bar: FIVE_HEADERS,
    },
];

pub fn rows(options: &Options) -> io::Result<Vec<Row>> {
    let (rounds, seconds) = options.quick_or((5, 1), (11, 1));
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| options.includes(case.name)) {
        rows.extend(case.measure(rounds, seconds)?);
    }
    rows.extend(in_process::rows(options)?);
    Ok(rows)
}

impl Case {
    fn measure(&self, rounds: usize, seconds: u64) -> io::Result<Vec<Row>> {
        eprintln!("{}, {rounds} rounds", self.name);
        let names = [self.bare, self.ours, self.theirs, self.constant];
        let servers: Vec<(Running, Process)> =
            names.into_iter().map(servers::start).collect::<io::Result<_>>()?;
        let load = Load::new(self.keys)?;
        for (_, process) in &servers {
            load.run(process, 1)?;
        }
        let mut cpu = [const { Vec::new() }; 4];
        for round in 0..rounds {
            for turn in 0..names.len() {
                let which = (round + turn) % names.len();
                cpu[which].push(load.run(&servers[which].1, seconds)?);
            }
        }
        Ok(self.report(cpu))
    }

    fn report(&self, cpu: [Vec<f64>; 4]) -> Vec<Row> {
        let [bare, ours, theirs, constant] = &cpu;
        let added = |name, with: &[f64]| {
            let added = with.iter().zip(bare).map(|(with, bare)| with - bare).collect();
            row(self.name, name, "server CPU us per request, added to the bare handler", added)
        };
        let theirs = added(self.theirs, theirs);
        let ours = added(self.ours, ours);
        let constant = added(self.constant, constant);
        // On a busy machine, the other middleware may seem to add nothing. Then the target cannot be measured
        // and counts as missed.
        let ratio = |own: &Row| {
            let measured = theirs.median > 0.0;
            let ratio = if measured { own.median / theirs.median } else { f64::INFINITY };
            row(self.name, &own.subject, "added CPU, relative to the other", vec![ratio])
        };
        let ratios = [Row { bar: Some(self.bar), ..ratio(&ours) }, ratio(&constant)];
        let names = [self.bare, self.ours, self.theirs, self.constant];
        let whole = names
            .iter()
            .zip(&cpu)
            .map(|(name, cpu)| row(self.name, name, "server CPU us per request", cpu.clone()));
        whole.chain([ours, theirs, constant]).chain(ratios).collect()
    }
}
