//! Measures the time of a check, and checks for over-admission.

use std::{
    hint::black_box,
    sync::Barrier,
    time::{Duration, Instant},
};

use crate::{
    report::Row,
    row,
    subjects::{ALL, Floor, Subject},
    traffic::{Keys, Random, key},
};

pub const HOUR: Duration = Duration::from_secs(3_600);
/// Large enough that nothing is denied during a measurement.
pub const PLENTY: u32 = 1_000_000_000;
const BATCH: usize = 16;
/// Slices per candidate and round.
const SLICES: usize = 20;
/// The number of checks per slice, which take a few hundred microseconds.
pub const SLICE: usize = 2_048;
/// The subjects that are measured with more threads than CPUs, too.
const FASTEST: [&str; 3] = ["pacegate", "governor foldhash", "floor"];

/// Targets of issue 19: a plain check compared with the floor and with governor, and a batch compared with
/// single calls.
const MAX_OF_FLOOR: f64 = 1.5;
const MAX_OF_GOVERNOR: f64 = 0.9;
const MAX_OF_SINGLE: f64 = 1.0;
const MAX_OF_SINGLE_ZIPF: f64 = 1.0 / 1.8;

/// One way to decide a list of keys.
pub struct Candidate<'a> {
    pub name: String,
    pub slice: usize,
    pub check: Box<dyn Fn(&[String]) + Sync + 'a>,
    /// The target: its maximum time, relative to the first candidate.
    pub bar: Option<f64>,
}

impl<'a> Candidate<'a> {
    pub fn new(name: &str, check: impl Fn(&[String]) + Sync + 'a) -> Self {
        Self { name: name.to_owned(), slice: SLICE, check: Box::new(check), bar: None }
    }

    /// Checks the keys of a subject one by one.
    fn single(subject: &'a dyn Subject) -> Self {
        let check = |keys: &[String]| {
            keys.iter().for_each(|key| {
                black_box(subject.check(key));
            });
        };
        Self { slice: subject.slice(), ..Self::new(subject.name(), check) }
    }

    /// Checks the keys of a subject in batches.
    fn batches(subject: &'a dyn Subject) -> Self {
        Self::new(subject.name(), |keys: &[String]| {
            keys.chunks(BATCH).for_each(|keys| {
                black_box(subject.check_many(keys));
            });
        })
    }
}

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

/// Measures nanoseconds per check for every number of threads and subject, singly and in batches.
pub fn checks(case: &str, keys: &Keys, rounds: usize) -> Vec<Row> {
    let mut subjects: Vec<_> = ALL.iter().map(|make| make(PLENTY, HOUR)).collect();
    subjects.push(Box::new(Floor::new(keys.count())));
    for subject in &subjects {
        (0..keys.count()).for_each(|n| {
            black_box(subject.check(&key(n)));
        });
    }
    let mut rows = Vec::new();
    for threads in [1, 2, 4, 8] {
        eprintln!("{case}, {threads} threads, {rounds} rounds");
        let measured = || {
            let subjects = subjects.iter().map(|subject| &**subject);
            subjects.filter(|subject| threads <= 2 || FASTEST.contains(&subject.name()))
        };
        let mut candidates: Vec<_> = measured().map(Candidate::single).collect();
        let singles = candidates.len();
        let with_batches = measured().filter(|subject| subject.has_batches());
        candidates.extend(with_batches.map(Candidate::batches));
        let times = measure(&candidates, keys, threads, rounds);
        let name = format!("{case} {threads}t");
        let batch = format!("{name} batch");
        rows.extend(report(&name, &candidates[..singles], &times[..singles]));
        rows.extend(report(&batch, &candidates[singles..], &times[singles..]));
        rows.extend(bars(&name, &candidates[..singles], &times[..singles]));
        let is_zipf = matches!(keys, Keys::Zipf(_));
        let bar = if is_zipf && threads == 1 { MAX_OF_SINGLE_ZIPF } else { MAX_OF_SINGLE };
        let metric = "time, relative to single calls";
        rows.push(ratio(&batch, "pacegate", metric, &times[singles], &times[0], Some(bar)));
    }
    rows
}

/// Compares a plain check of Pacegate, the first candidate, with the floor and with the fastest variant of governor.
fn bars(case: &str, candidates: &[Candidate<'_>], times: &[Vec<f64>]) -> Vec<Row> {
    let of = |prefix: &str| -> Vec<f64> {
        let named = candidates.iter().zip(times).filter(|(one, _)| one.name.starts_with(prefix));
        let named: Vec<_> = named.map(|(_, times)| times).collect();
        (0..times[0].len())
            .map(|round| named.iter().map(|times| times[round]).fold(f64::INFINITY, f64::min))
            .collect()
    };
    [
        ("time, relative to the floor", "floor", MAX_OF_FLOOR),
        ("time, relative to governor's best", "governor", MAX_OF_GOVERNOR),
    ]
    .map(|(metric, prefix, bar)| ratio(case, "pacegate", metric, &times[0], &of(prefix), Some(bar)))
    .into()
}

/// Measures nanoseconds per check of every candidate once per round, starting with the next one each time.
pub fn measure(
    candidates: &[Candidate<'_>],
    keys: &Keys,
    threads: usize,
    rounds: usize,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); candidates.len()];
    for round in 0..rounds {
        for turn in 0..candidates.len() {
            let which = (round + turn) % candidates.len();
            times[which].push(slices(&candidates[which], keys, threads, round));
        }
    }
    times
}

/// Returns for each candidate its times, and their ratios to the first one.
fn report(case: &str, candidates: &[Candidate<'_>], times: &[Vec<f64>]) -> Vec<Row> {
    let rows = candidates.iter().zip(times).flat_map(|(candidate, own)| {
        let metric = "time, relative to pacegate";
        [
            row(case, &candidate.name, "ns per check", own.clone()),
            ratio(case, &candidate.name, metric, own, &times[0], None),
        ]
    });
    rows.collect()
}

/// Compares two times round by round, so that a disturbance of a whole round affects both.
pub fn ratio(
    case: &str,
    subject: &str,
    metric: &'static str,
    times: &[f64],
    others: &[f64],
    bar: Option<f64>,
) -> Row {
    let ratios = times.iter().zip(others).map(|(time, other)| time / other).collect();
    Row { bar, ..row(case, subject, metric, ratios) }
}

/// Measures nanoseconds per check and thread: the median of several slices. The keys of a slice are created
/// just before it is measured, so they are in the cache, like the key of a request that was just read.
pub fn slices(candidate: &Candidate<'_>, keys: &Keys, threads: usize, round: usize) -> f64 {
    let Candidate { slice, ref check, .. } = *candidate;
    let barrier = Barrier::new(threads);
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut random = Random::new((1 + round * 64 + thread) as u64);
                    let drawn: Vec<_> =
                        (0..SLICES * slice).map(|_| keys.draw(&mut random)).collect();
                    drawn
                        .chunks(slice)
                        .map(|drawn| {
                            let keys: Vec<_> = drawn.iter().map(|&n| key(n)).collect();
                            barrier.wait();
                            let start = Instant::now();
                            check(&keys);
                            start.elapsed().as_nanos() as f64 / slice as f64
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
