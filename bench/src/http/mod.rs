//! The middleware beside other middleware, around a handler that does nothing, driven by wrk.
//!
//! What counts is what a middleware adds: the processor time of a server for each request, less that of the same server
//! without it. Each server is a process of its own with one thread. A round gives each of them a stretch of load in
//! turn, starting with another one each time, and what is added is taken round by round.

mod actix;
mod load;
mod servers;

use std::io;

use self::load::{Keys, Load};
use crate::{
    report::Row,
    row,
    service::processes::{Process, Running},
};

pub use servers::{asked_to_serve, serve};

/// A server without middleware, and those that are compared: ours, theirs, and one whose middleware does nothing but
/// add as many headers as ours, which are always the same.
struct Case {
    name: &'static str,
    keys: Keys,
    bare: &'static str,
    ours: &'static str,
    theirs: &'static str,
    constant: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        name: "axum, one peer",
        keys: Keys::One,
        bare: "axum",
        ours: "pacegate peer",
        theirs: "tower_governor peer",
        constant: "five headers",
    },
    // Theirs has two headers and ours five: here ours has the three of the same kind.
    Case {
        name: "axum, legacy headers",
        keys: Keys::One,
        bare: "axum",
        ours: "pacegate legacy",
        theirs: "tower_governor peer",
        constant: "five headers",
    },
    Case {
        name: "axum, 100k clients",
        keys: Keys::Many,
        bare: "axum",
        ours: "pacegate forwarded",
        theirs: "tower_governor forwarded",
        constant: "five headers",
    },
    Case {
        name: "actix-web, one peer",
        keys: Keys::One,
        bare: "actix",
        ours: "pacegate actix peer",
        theirs: "actix-governor peer",
        constant: "five headers actix",
    },
    Case {
        name: "actix-web, 100k clients",
        keys: Keys::Many,
        bare: "actix",
        ours: "pacegate actix forwarded",
        theirs: "actix-governor forwarded",
        constant: "five headers actix",
    },
];

/// At most this much of what theirs adds, by issue 5.
const BAR: f64 = 0.5;

pub fn rows(quick: bool) -> io::Result<Vec<Row>> {
    let (rounds, seconds) = if quick { (3, 1) } else { (15, 3) };
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(case.measure(rounds, seconds)?);
    }
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
        // On a busy machine theirs may seem to add nothing. A bar that cannot be measured is not kept.
        let ratio = |own: &Row| {
            let measured = theirs.median > 0.0;
            let ratio = if measured { own.median / theirs.median } else { f64::INFINITY };
            row(self.name, &own.subject, "added CPU, times that of the other", vec![ratio])
        };
        let ratios = [Row { bar: Some(BAR), ..ratio(&ours) }, ratio(&constant)];
        let names = [self.bare, self.ours, self.theirs, self.constant];
        let whole = names
            .iter()
            .zip(&cpu)
            .map(|(name, cpu)| row(self.name, name, "server CPU us per request", cpu.clone()));
        whole.chain([ours, theirs, constant]).chain(ratios).collect()
    }
}
