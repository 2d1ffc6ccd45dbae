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

/// A server without middleware, and those that are compared: ours and theirs.
struct Case {
    name: &'static str,
    keys: Keys,
    bare: &'static str,
    ours: &'static str,
    theirs: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        name: "axum, one peer",
        keys: Keys::One,
        bare: "axum",
        ours: "tollgate peer",
        theirs: "tower_governor peer",
    },
    // Theirs has two headers and ours five: here ours has the three of the same kind.
    Case {
        name: "axum, legacy headers",
        keys: Keys::One,
        bare: "axum",
        ours: "tollgate legacy",
        theirs: "tower_governor peer",
    },
    Case {
        name: "axum, 100k clients",
        keys: Keys::Many,
        bare: "axum",
        ours: "tollgate forwarded",
        theirs: "tower_governor forwarded",
    },
    Case {
        name: "actix-web, one peer",
        keys: Keys::One,
        bare: "actix",
        ours: "tollgate actix peer",
        theirs: "actix-governor peer",
    },
    Case {
        name: "actix-web, 100k clients",
        keys: Keys::Many,
        bare: "actix",
        ours: "tollgate actix forwarded",
        theirs: "actix-governor forwarded",
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
        let names = [self.bare, self.ours, self.theirs];
        let servers: Vec<(Running, Process)> =
            names.into_iter().map(servers::start).collect::<io::Result<_>>()?;
        let load = Load::new(self.keys)?;
        for (_, process) in &servers {
            load.run(process, 1)?;
        }
        let mut cpu = [const { Vec::new() }; 3];
        for round in 0..rounds {
            for turn in 0..names.len() {
                let which = (round + turn) % names.len();
                cpu[which].push(load.run(&servers[which].1, seconds)?);
            }
        }
        Ok(self.report(cpu))
    }

    fn report(&self, [bare, ours, theirs]: [Vec<f64>; 3]) -> Vec<Row> {
        let added = |with: &[f64]| with.iter().zip(&bare).map(|(with, bare)| with - bare).collect();
        let (our_part, their_part) = (added(&ours), added(&theirs));
        let metric = "server CPU us per request, added to the bare handler";
        let own = row(self.name, self.ours, metric, our_part);
        let other = row(self.name, self.theirs, metric, their_part);
        // On a busy machine theirs may seem to add nothing. A bar that cannot be measured is not kept.
        let measured = other.median > 0.0;
        let ratio = if measured { own.median / other.median } else { f64::INFINITY };
        let ratio = row(self.name, self.ours, "added CPU, times that of the other", vec![ratio]);
        let whole = "server CPU us per request";
        vec![
            row(self.name, self.bare, whole, bare),
            row(self.name, self.ours, whole, ours),
            row(self.name, self.theirs, whole, theirs),
            own,
            other,
            Row { bar: Some(BAR), ..ratio },
        ]
    }
}
