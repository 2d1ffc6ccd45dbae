//! Measures the time of a check, and checks for over-admission.

use std::{
    hint::black_box,
    sync::Barrier,
    time::{Duration, Instant},
};

use crate::{
    report::Row,
    row,
    subjects::{ALL, Subject},
    traffic::{Keys, Random, Zipf, key},
};

const HOUR: Duration = Duration::from_secs(3_600);
/// Large enough that nothing is denied during a measurement.
const PLENTY: u32 = 1_000_000_000;
const BATCH: usize = 16;
/// Slices per subject and round.
const SLICES: usize = 20;

/// Two threads make 1,000 requests each for a key with a limit of 100. Reports the worst of 20 new keys.
pub fn over_admitted() -> Vec<Row> {
    ALL.iter()
        .map(|make| {
            let subject = make(100, HOUR);
            let over = (0..20)
                .map(|round| {
                    let name = key(round);
                    let ask = || (0..1_000).filter(|_| subject.check(&name)).count();
                    let admitted = std::thread::scope(|scope| {
                        let asked = [scope.spawn(ask), scope.spawn(ask)];
                        asked.map(|thread| thread.join().expect("no panic")).iter().sum::<usize>()
                    });
                    (admitted as f64 - 100.0).max(0.0)
                })
                .collect();
            row("100 of 2000", subject.name(), "over-admitted", over)
        })
        .collect()
}

/// Measures nanoseconds per check for every case, number of threads and subject.
pub fn checks(rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, keys) in [
        ("hot key", Keys::One),
        ("10k uniform", Keys::Uniform(10_000)),
        ("1M zipf", Keys::Zipf(Zipf::new(1_000_000))),
    ] {
        let subjects: Vec<_> = ALL.iter().map(|make| make(PLENTY, HOUR)).collect();
        for subject in &subjects {
            (0..keys.count()).for_each(|n| {
                black_box(subject.check(&key(n)));
            });
        }
        for threads in [1, 2] {
            eprintln!("{case}, {threads} threads, {rounds} rounds");
            let singly = interleave(&subjects, rounds, |subject, round| {
                slices(subject, &keys, threads, round, &|slice| {
                    slice.iter().for_each(|key| {
                        black_box(subject.check(key));
                    });
                })
            });
            rows.extend(name(&format!("{case} {threads}t"), &subjects, singly));
            let batched = interleave(&subjects, rounds, |subject, round| {
                subject.has_batches().then(|| ())?;
                slices(subject, &keys, threads, round, &|slice| {
                    slice.chunks(BATCH).for_each(|keys| {
                        black_box(subject.check_many(keys));
                    });
                })
            });
            rows.extend(name(&format!("{case} {threads}t batch"), &subjects, batched));
        }
    }
    rows
}

/// Measures every subject once per round, starting with the next one each time.
fn interleave(
    subjects: &[Box<dyn Subject>],
    rounds: usize,
    ask: impl Fn(&dyn Subject, usize) -> Option<f64>,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); subjects.len()];
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let which = (round + turn) % subjects.len();
            times[which].extend(ask(&*subjects[which], round));
        }
    }
    times
}

/// Returns for each subject its times, and their ratios to Pacegate: compared per round, so that a
/// disturbance of a whole round affects both.
fn name(case: &str, subjects: &[Box<dyn Subject>], times: Vec<Vec<f64>>) -> Vec<Row> {
    let ours = times[0].clone();
    subjects
        .iter()
        .zip(times)
        .filter(|(_, times)| !times.is_empty())
        .flat_map(|(subject, times)| {
            let ratios = times.iter().zip(&ours).map(|(time, ours)| time / ours).collect();
            [
                row(case, subject.name(), "ns per check", times),
                row(case, subject.name(), "time, relative to pacegate", ratios),
            ]
        })
        .collect()
}

/// Measures nanoseconds per check and thread: the median of several slices. The keys of a slice are created
/// just before it is measured, so they are in the cache, like the key of a request that was just read.
fn slices(
    subject: &dyn Subject,
    keys: &Keys,
    threads: usize,
    round: usize,
    ask: &(dyn Fn(&[String]) + Sync),
) -> Option<f64> {
    let barrier = Barrier::new(threads);
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut random = Random::new((1 + round * 64 + thread) as u64);
                    let slice = subject.slice();
                    let drawn: Vec<_> =
                        (0..SLICES * slice).map(|_| keys.draw(&mut random)).collect();
                    drawn
                        .chunks(slice)
                        .map(|drawn| {
                            let keys: Vec<_> = drawn.iter().map(|&n| key(n)).collect();
                            barrier.wait();
                            let start = Instant::now();
                            ask(&keys);
                            start.elapsed().as_nanos() as f64 / slice as f64
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    times.sort_by(f64::total_cmp);
    Some(times[times.len() / 2])
}
