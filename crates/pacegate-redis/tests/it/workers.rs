//! Starts this test program again as other processes that charge the same keys.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pacegate::{Algorithm, Charge, KeyRef, Limit, PolicyName, Store, algorithm::Outcome};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::Client;
use tokio::runtime::Runtime;

use crate::kit::{PATIENT, two_threads};

/// Several processes that run the same orders at the same time.
pub(crate) struct Workers {
    processes: Vec<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

/// An order for all tasks of all processes.
#[derive(Clone, Copy)]
pub(crate) struct Round<'a> {
    pub(crate) key: &'a str,
    pub(crate) limit: Limit,
    pub(crate) costs: Costs,
    pub(crate) cache: Cache,
    pub(crate) lease: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Costs {
    One,
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    On,
    Off,
}

/// Keys that requests charge three at a time, and their placement on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    Together,
    Apart,
}

pub(crate) const PROCESSES: usize = 3;
/// 64 over all processes.
const TASKS: [u64; PROCESSES] = [22, 21, 21];
/// Keys of which each request takes three.
pub(crate) const SET_KEYS: u64 = 6;

/// The environment variable of a worker process: its number, the URL, and the server for synchronization.
const VARIABLE: &str = "PACEGATE_TEST_WORKER";
const MARK: &str = "answer:";

impl Workers {
    /// Starts processes that charge the servers at `url`, and synchronize by a counter on the server at `meeting`.
    pub(crate) fn start(url: &str, meeting: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let start = |number| {
            let mut command = Command::new(&program);
            command.args(["workers::worker", "--exact", "--ignored", "--nocapture"]);
            command.env(VARIABLE, format!("{number} {url} {meeting}"));
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            (child, input, BufReader::new(output))
        };
        Self { processes: (0..PROCESSES).map(start).collect() }
    }

    /// Returns the units that each process was granted.
    pub(crate) fn charge(&mut self, round: Round<'_>) -> Vec<u64> {
        let Round { key, limit, costs, cache, lease } = round;
        let answers = self.tell(&format!("charge {key} {costs:?} {cache:?} {lease} {limit}"));
        answers.into_iter().map(|answer| answer[0]).collect()
    }

    /// Returns the units granted for each key by all processes, then the number of denied requests.
    pub(crate) fn charge_sets(&mut self, name: &str, limit: Limit, placing: Placing) -> Vec<u64> {
        let answers = self.tell(&format!("sets {name} {placing:?} {limit}"));
        (0..=SET_KEYS as usize).map(|place| answers.iter().map(|one| one[place]).sum()).collect()
    }

    pub(crate) fn return_leases(&mut self) {
        self.tell("return");
    }

    fn tell(&mut self, order: &str) -> Vec<Vec<u64>> {
        for (_, input, _) in &mut self.processes {
            writeln!(input, "{order}").unwrap();
        }
        self.processes.iter_mut().map(|(_, _, output)| read(output)).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (mut child, input, _) in self.processes.drain(..) {
            drop(input);
            drop(child.wait());
        }
    }
}

fn read(output: &mut impl BufRead) -> Vec<u64> {
    loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "a worker has ended");
        if let Some((_, numbers)) = line.split_once(MARK) {
            return numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
        }
    }
}

/// Returns the limit of the nth key of a set. Some are used up long before others.
pub(crate) fn set_limit(limit: Limit, place: u64) -> Limit {
    let amount = limit.amount() / (place + 1);
    Limit::new(amount, limit.period()).unwrap().with_algorithm(limit.algorithm()).unwrap()
}

pub(crate) fn set_key(name: &str, place: u64) -> String {
    format!("{name}/{place}")
}

/// Charges a set of keys, each with its index and cost.
pub(crate) async fn charge_set(
    store: &RedisStore,
    (name, limit, placing): (&str, Limit, Placing),
    parts: &[(u64, u64)],
) -> bool {
    let keys: Vec<String> = parts.iter().map(|&(place, _)| set_key(name, place)).collect();
    let policies: Vec<PolicyName> = parts.iter().map(|_| "sets".parse().unwrap()).collect();
    let charges: Vec<Charge<'_>> = (keys.iter().zip(parts).zip(policies))
        .map(|((key, &(place, cost)), policy)| {
            let mut charge =
                Charge::new(policy, KeyRef::new(key.as_bytes()), set_limit(limit, place));
            (charge.cost, charge.permit) = (cost, next_permit());
            if placing == Placing::Together {
                charge.tag = KeyRef::new(name.as_bytes());
            }
            charge
        })
        .collect();
    let outcomes = store.charge(&charges, None).await.unwrap();
    outcomes.iter().all(|outcome| outcome.is_admitted())
}

pub(crate) async fn charge(
    store: &RedisStore,
    (key, limit): (&str, Limit),
    (cost, lease): (u64, u64),
) -> Outcome {
    let permit = if limit.algorithm() == Algorithm::Concurrency { next_permit() } else { 0 };
    let key = KeyRef::new(key.as_bytes());
    let mut charge = Charge::new("contended".parse().unwrap(), key, limit);
    (charge.cost, charge.permit, charge.lease) = (cost, permit, lease);
    store.charge(&[charge], None).await.unwrap()[0]
}

fn next_permit() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u128::from(NEXT.fetch_add(1, Relaxed)) + (u128::from(std::process::id()) << 64)
}

/// The main function of a worker process.
#[test]
#[ignore = "started by other tests as a separate process"]
fn worker() {
    let Some((number, url, meeting)) = orders_from() else { return };
    Worker::new(two_threads(), number, &url, &meeting).run();
}

#[expect(
    clippy::disallowed_methods,
    reason = "the parent test passes its orders in an environment variable"
)]
fn orders_from() -> Option<(usize, String, String)> {
    let words = std::env::var(VARIABLE).ok()?;
    let mut words = words.split(' ').map(str::to_owned);
    Some((words.next()?.parse().unwrap(), words.next()?, words.next()?))
}

struct Worker {
    runtime: Runtime,
    tasks: u64,
    cached: RedisStore,
    uncached: RedisStore,
    meeting: Client,
    /// The number of synchronizations so far.
    met: u64,
}

impl Worker {
    fn new(runtime: Runtime, number: usize, url: &str, meeting: &str) -> Self {
        let store = |entries| {
            let builder = RedisStore::builder(url).unwrap().deadline(PATIENT);
            runtime.block_on(builder.deny_cache(entries).connect()).unwrap()
        };
        let (cached, uncached) = (store(1_000), store(0));
        let meeting = Client::connect(meeting).unwrap();
        Self { runtime, tasks: TASKS[number], cached, uncached, meeting, met: 0 }
    }

    fn run(mut self) {
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.splitn(6, ' ').collect();
            self.meet();
            let answer = match words[..] {
                ["charge", key, costs, cache, lease, limit] => {
                    let store = if cache == "On" { &self.cached } else { &self.uncached };
                    let costs = if costs == "One" { Costs::One } else { Costs::Mixed };
                    let round = (key, limit.parse().unwrap());
                    self.charge(store, round, costs, lease.parse().unwrap())
                }
                ["sets", name, placing, ..] => {
                    let placing =
                        if placing == "Apart" { Placing::Apart } else { Placing::Together };
                    self.charge_sets((name, words[3..].join(" ").parse().unwrap(), placing))
                }
                ["return"] => {
                    self.runtime.block_on(self.cached.return_leases()).unwrap();
                    self.runtime.block_on(self.uncached.return_leases()).unwrap();
                    Vec::new()
                }
                _ => panic!("no order: {line}"),
            };
            let numbers: Vec<String> = answer.iter().map(u64::to_string).collect();
            let mut output = std::io::stdout();
            writeln!(output, "{MARK} {}", numbers.join(" ")).unwrap();
            output.flush().unwrap();
        }
    }

    /// Waits for the other processes.
    fn meet(&mut self) {
        self.met += 1;
        let place = format!("meeting:{}", self.met);
        let mut there = self.meeting.command(&["INCR", &place]).unwrap().int();
        while there < PROCESSES as i64 {
            there = self.meeting.command(&["GET", &place]).unwrap().int();
        }
    }

    fn charge(
        &self,
        store: &RedisStore,
        (key, limit): (&str, Limit),
        costs: Costs,
        lease: u64,
    ) -> Vec<u64> {
        let tasks = (0..self.tasks).map(|task| {
            let (store, key) = (store.clone(), key.to_owned());
            async move {
                let (mut cost, mut granted) = (1, 0);
                for turn in task.. {
                    if costs == Costs::Mixed && cost > 0 {
                        cost = 1 + turn % 5;
                    }
                    if charge(&store, (&key, limit), (cost.max(1), lease)).await.is_admitted() {
                        granted += cost.max(1);
                    } else if cost <= 1 {
                        break;
                    } else {
                        // From here on one unit at a time, until none fits.
                        cost = 0;
                    }
                }
                granted
            }
        });
        vec![self.run_all(tasks).into_iter().sum()]
    }

    fn charge_sets(&self, set: (&str, Limit, Placing)) -> Vec<u64> {
        let (name, limit, placing) = set;
        let tasks = (0..self.tasks).map(|task| {
            let (store, name) = (self.cached.clone(), name.to_owned());
            async move {
                let mut granted = vec![0; SET_KEYS as usize + 1];
                for turn in task..task + 12 {
                    let part = |nth: u64| ((turn + nth * (1 + turn % 2)) % SET_KEYS, 1 + nth % 2);
                    let parts = [part(0), part(1), part(2)];
                    if charge_set(&store, (&name, limit, placing), &parts).await {
                        parts.iter().for_each(|&(place, cost)| granted[place as usize] += cost);
                    } else {
                        granted[SET_KEYS as usize] += 1;
                    }
                }
                granted
            }
        });
        let granted = self.run_all(tasks);
        (0..=SET_KEYS as usize).map(|place| granted.iter().map(|one| one[place]).sum()).collect()
    }

    fn run_all<T: Send + 'static>(
        &self,
        tasks: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
    ) -> Vec<T> {
        let tasks: Vec<_> = tasks.collect();
        let start = Arc::new(tokio::sync::Barrier::new(tasks.len()));
        self.runtime.block_on(async {
            let mut running = tokio::task::JoinSet::new();
            for task in tasks {
                let start = start.clone();
                running.spawn(async move {
                    start.wait().await;
                    task.await
                });
            }
            running.join_all().await
        })
    }
}
