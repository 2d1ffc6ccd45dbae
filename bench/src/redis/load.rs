//! Many tasks, each of which sends one request after the other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pacegate_testkit::servers::Server;

use super::Subject;
use crate::traffic::{Keys, Random, key};

/// The keys to request, with names prepared in advance.
pub struct Asked {
    keys: Keys,
    names: Vec<String>,
}

impl Asked {
    pub fn new(keys: Keys) -> Self {
        let names = (0..keys.count()).map(key).collect();
        Self { keys, names }
    }
}

/// The result of a slice of requests.
#[derive(Clone, Copy)]
pub struct Slice {
    pub rate: f64,
    pub p50: f64,
    pub p99: f64,
    /// Server CPU time per decision, in microseconds.
    pub cpu: f64,
}

pub async fn slice(
    subject: &Subject,
    server: &Server,
    keys: &Arc<Asked>,
    (tasks, stretch): (usize, Duration),
) -> Slice {
    let before = server.cpu_micros();
    let start = Instant::now();
    let asking: Vec<_> = (0..tasks)
        .map(|task| tokio::spawn(ask(subject.clone(), keys.clone(), task, start + stretch)))
        .collect();
    let mut times = Vec::new();
    for task in asking {
        times.extend(task.await.expect("no panic"));
    }
    let took = start.elapsed().as_secs_f64();
    let cpu = (server.cpu_micros() - before) as f64;
    times.sort_unstable();
    let percentile = |share: usize| f64::from(times[(times.len() - 1) * share / 100]) / 1_000.0;
    Slice {
        rate: times.len() as f64 / took,
        p50: percentile(50),
        p99: percentile(99),
        cpu: cpu / times.len() as f64,
    }
}

/// Sends requests until a time; returns the latency of each, in nanoseconds.
async fn ask(subject: Subject, keys: Arc<Asked>, task: usize, until: Instant) -> Vec<u32> {
    let mut random = Random::new(1 + task as u64 * 7_919);
    let mut times = Vec::with_capacity(1 << 14);
    let mut start = Instant::now();
    while start < until {
        let key = &keys.names[keys.keys.draw(&mut random) as usize];
        std::hint::black_box(subject.check(key).await);
        let end = Instant::now();
        times.push((end - start).as_nanos() as u32);
        start = end;
        // Requests that need no round trip would otherwise never yield.
        if times.len().is_multiple_of(64) {
            tokio::task::yield_now().await;
            start = Instant::now();
        }
    }
    times
}
