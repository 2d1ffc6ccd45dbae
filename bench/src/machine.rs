//! Measures the unavoidable parts of a check on this machine: a load from a table larger than the cache, a
//! lock, and reading the clock.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use crate::{report::Row, row, traffic::Random};

/// Number of 64-byte lines: as much memory as a million keys of Pacegate.
const LINES: usize = 600_000;
const LOCKS: usize = 512;
const LOADS: usize = 1 << 18;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(u64);

#[repr(align(64))]
struct Lock(AtomicBool);

/// Measures random loads under a lock, in nanoseconds: with overlapping loads, and with a clock read for each
/// load.
pub fn loads(rounds: usize) -> Vec<Row> {
    let mut lines = vec![Line(0); LINES];
    let locks: Vec<_> = (0..LOCKS).map(|_| Lock(AtomicBool::new(false))).collect();
    let mut random = Random::new(11);
    let places: Vec<usize> = (0..LOADS).map(|_| random.below(LINES as u64) as usize).collect();
    let clock = quanta::Clock::new();
    let mut measure = |time: &dyn Fn() -> u64| {
        let start = Instant::now();
        for &place in &places {
            let now = time();
            let lock = &locks[place % LOCKS].0;
            black_box(lock.swap(true, Ordering::Acquire));
            lines[place].0 = lines[place].0.wrapping_add(now);
            lock.store(false, Ordering::Release);
        }
        start.elapsed().as_nanos() as f64 / LOADS as f64
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(measure(&|| black_box(1)));
        with.push(measure(&|| clock.raw()));
    }
    black_box(&lines);
    let (case, metric) = ("random load", "ns per load under a lock");
    vec![row(case, "no clock", metric, without), row(case, "counter read per load", metric, with)]
}
