//! Growth: the cost of a decision with more keys, policies, connections and servers.
//!
//! Each dimension has three sizes, which are measured in interleaved rounds. Ratios are relative to the smallest size
//! of the same round.

mod connections;
mod servers;

use std::{hint::black_box, io, process::Command};

use pacegate::Limiter;

use crate::{
    Options,
    limits::{POLICY_COUNTS, Policies},
    memory::live_bytes,
    report::Row,
    row,
    service::processes::PROGRAM,
    speed::{Candidate, HOUR, PLENTY, ratio, slices},
    subjects::limit,
    traffic::{Keys, key},
};

const KEY_COUNTS: [(&str, u64); 3] = [("10k", 10_000), ("1M", 1_000_000), ("10M", 10_000_000)];

/// The metric of a cost relative to the smallest size.
const GROWTH: &str = "cost, relative to the smallest";

pub fn rows(options: &Options) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if options.includes("keys") {
        rows.extend(keys(options.quick_or(5, 21)));
    }
    if options.includes("policies") {
        rows.extend(policies(options.quick_or(5, 21)));
    }
    let (rounds, seconds) = options.quick_or((3, 1.0), (7, 2.0));
    if options.includes("connections") {
        rows.extend(connections::rows(rounds, seconds)?);
    }
    if options.includes("servers") {
        rows.extend(servers::rows(rounds, seconds)?);
    }
    Ok(rows)
}

/// Measures a check of one of many keys in memory.
fn keys(rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut limiters = Vec::new();
    for (name, count) in KEY_COUNTS {
        eprintln!("keys: filling {name}");
        let before = live_bytes();
        let limiter = Limiter::builder().max_keys(2 * count as usize).limit(limit(PLENTY, HOUR));
        let limiter = limiter.build().expect("valid limit");
        (0..count).for_each(|n| {
            black_box(limiter.check(&key(n)));
        });
        let bytes = (live_bytes() - before) as f64 / count as f64;
        rows.push(row("keys", name, "bytes per key", vec![bytes]));
        limiters.push((name, limiter, Keys::Uniform(count)));
    }
    eprintln!("keys, {rounds} rounds");
    let subjects = limiters.iter().map(|(name, limiter, keys)| {
        let check = |keys: &[String]| {
            keys.iter().for_each(|key| {
                black_box(limiter.check(key));
            });
        };
        (Candidate::new(name, check), keys)
    });
    rows.extend(measure("keys", &subjects.collect::<Vec<_>>(), rounds));
    rows
}

/// Measures a request with three attributes. Most requests are for ten of the policies.
fn policies(rounds: usize) -> Vec<Row> {
    eprintln!("policies, {rounds} rounds");
    let sets: Vec<_> = POLICY_COUNTS.into_iter().map(Policies::new).collect();
    let keys = Keys::Uniform(10_000);
    let subjects = sets.iter().map(|set| (set.candidate(&set.count.to_string(), None), &keys));
    measure("policies", &subjects.collect::<Vec<_>>(), rounds)
}

/// Measures each of `N` sizes once per round, starting with the next one each time. The first round is a warm-up and
/// not recorded. Returns the slices of each size.
fn interleave<T, const N: usize>(
    rounds: usize,
    mut slice: impl FnMut(usize) -> io::Result<T>,
) -> io::Result<[Vec<T>; N]> {
    let mut slices = [const { Vec::new() }; N];
    for round in 0..=rounds {
        for turn in 0..N {
            let which = (round + turn) % N;
            let taken = slice(which)?;
            if round > 0 {
                slices[which].push(taken);
            }
        }
    }
    Ok(slices)
}

/// Returns one value of each slice.
fn column<T>(slices: &[T], value: impl Fn(&T) -> f64) -> Vec<f64> {
    slices.iter().map(value).collect()
}

/// Returns the command that loads a server with 100,000 keys for some seconds.
fn load(url: &str, limit: &str, seconds: f64) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", url, "--limit", limit, "--keys", "uniform:100000", "--prefix", "k"]);
    command.args(["--check", "0", "--warm-up", "0s", "--json"]);
    command.args(["--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
    command
}

/// Measures nanoseconds per check with one thread, once per subject and round.
fn measure(case: &str, subjects: &[(Candidate<'_>, &Keys)], rounds: usize) -> Vec<Row> {
    let mut times = vec![Vec::new(); subjects.len()];
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let which = (round + turn) % subjects.len();
            let (candidate, keys) = &subjects[which];
            times[which].push(slices(candidate, keys, 1, round));
        }
    }
    let rows = subjects.iter().zip(&times).flat_map(|((candidate, _), own)| {
        let name = &candidate.name;
        [
            row(case, name, "ns per check", own.clone()),
            ratio(case, name, GROWTH, own, &times[0], None),
        ]
    });
    rows.collect()
}
