//! Synthetic traffic from patterns such as `greedy clients=1000 rate=50/second for=1h`.

mod clients;
mod spec;
mod write;

use std::{cmp::Reverse, collections::BinaryHeap};

use self::clients::Clients;
use super::replay::ClientDecision;
use crate::random::Random;

pub use self::{
    spec::{CountError, Kind, Pattern, PatternError, SettingError},
    write::{Generate, GenerateError},
};

/// Traffic of several patterns, merged by time.
#[derive(Debug)]
pub(crate) struct Crowd {
    patterns: Vec<Clients>,
    /// Time of the next request of each pattern.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

/// One request of a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub at: u64,
    /// Index of the pattern.
    pattern: usize,
    /// Number of the client within the pattern.
    client: u64,
    pub ip: String,
    pub user: String,
    pub method: &'static str,
    pub path: String,
    pub user_agent: &'static str,
}

impl Crowd {
    /// Creates traffic that begins at `start`. The same seed generates the same traffic.
    pub(crate) fn new(patterns: &[Pattern], start: u64, seed: u64) -> Self {
        let made = patterns.iter().enumerate().map(|(place, pattern)| {
            let random = Random::new(seed ^ (place as u64).wrapping_mul(0x5851_f42d_4c95_7f2d));
            Clients::new(pattern.clone(), start, random)
        });
        let mut patterns: Vec<Clients> = made.collect();
        let firsts = patterns.iter_mut().enumerate();
        let next = firsts.filter_map(|(place, one)| Some(Reverse((one.next()?, place)))).collect();
        Self { patterns, next }
    }

    /// Returns the next request.
    pub(crate) fn visit(&mut self) -> Option<Visit> {
        let Reverse((at, pattern)) = self.next.pop()?;
        let (client, random) = self.patterns[pattern].client();
        Some(Visit::new(at, pattern, client, random))
    }

    /// Reports the decision to the client, which may retry.
    pub(crate) fn answer(&mut self, visit: &Visit, answer: Option<&ClientDecision>) {
        let clients = &mut self.patterns[visit.pattern];
        clients.answer(visit.at, visit.client, answer);
        if let Some(at) = clients.next() {
            self.next.push(Reverse((at, visit.pattern)));
        }
    }
}

impl Visit {
    fn new(at: u64, pattern: usize, client: u64, random: &mut Random) -> Self {
        // Each pattern has a separate network, so that clients of different patterns have different
        // addresses.
        let place = client + 1;
        let ip = format!(
            "10.{}.{}.{}",
            (pattern * 16 + 1) as u64 + (place >> 16),
            (place >> 8) & 255,
            place & 255
        );
        let (method, path) = Self::page(random);
        let user_agent = AGENTS[usize::try_from(client % AGENTS.len() as u64).unwrap_or_default()];
        Self { at, pattern, client, ip, user: format!("user-{client}"), method, path, user_agent }
    }

    fn page(random: &mut Random) -> (&'static str, String) {
        match random.below(100) {
            0..3 => ("POST", "/login".to_owned()),
            3..45 => ("GET", format!("/api/items/{}", random.skewed(5_000))),
            45..65 => ("GET", format!("/api/search?q={}", random.skewed(900))),
            65..72 => ("POST", "/api/orders".to_owned()),
            72..95 => ("GET", format!("/pages/{}", random.skewed(120))),
            _ => ("GET", "/".to_owned()),
        }
    }
}

const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/139.0.0.0",
    "python-requests/2.32",
];
