//! Migrating slots and failing masters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use pacegate::{Algorithm, Charge, Key, KeyRef, Limit, Store, StoreError, Update};
use pacegate_redis::{Layout, RedisStore};
use pacegate_testkit::{
    servers::{Cluster, Flavor, Proxy, Reply, eventually},
    slot_of,
};
use tokio::time::timeout;

use super::{DEADLINE, Limiters, RETURN, now};
use crate::kit::{PATIENT, two_threads};

/// The number of keys in constant use, all in one slot.
const KEYS: usize = 10;
const AMOUNT: u64 = 300;

/// Returns the slot of the only key of a cluster.
fn only_slot(cluster: &Cluster) -> u16 {
    let names = cluster.nodes().iter().map(|node| node.command(&["KEYS", "pg:*"]));
    let names: Vec<Reply> = names.flat_map(|names| names.items().to_vec()).collect();
    slot_of(names[0].text().as_bytes())
}

/// Returns the nth key in the migrating slot.
fn charge(keys: &[String], place: usize) -> Charge<'_> {
    static PERMITS: AtomicU64 = AtomicU64::new(1);
    let algorithm = Algorithm::BUILT_IN[place % Algorithm::BUILT_IN.len()];
    let limit = Limit::new(AMOUNT, Duration::from_secs(1_000 * 3_600)).unwrap();
    let limit = limit.with_algorithm(algorithm).unwrap();
    let key = KeyRef::new(keys[place].as_bytes());
    let mut charge = Charge::new("moving".parse().unwrap(), key, limit);
    charge.tag = KeyRef::new(b"moving");
    if algorithm == Algorithm::Concurrency {
        charge.permit = PERMITS.fetch_add(1, SeqCst).into();
    }
    charge
}

fn keys(name: impl std::fmt::Display) -> Vec<String> {
    (0..KEYS).map(|place| format!("{name}/{place}")).collect()
}

/// Charges one key and two keys in turn, continuously, and counts the admitted units of each.
struct Charging {
    keys: Arc<Vec<String>>,
    admitted: Arc<[AtomicU64; KEYS]>,
    /// The number of requests.
    turns: Arc<AtomicU64>,
    going: Arc<AtomicBool>,
    tasks: tokio::task::JoinSet<()>,
}

impl Charging {
    fn start(runtime: &tokio::runtime::Runtime, store: &RedisStore, keys: Vec<String>) -> Self {
        let mut charging = Self {
            keys: Arc::new(keys),
            admitted: Arc::default(),
            turns: Arc::default(),
            going: Arc::new(AtomicBool::new(true)),
            tasks: tokio::task::JoinSet::new(),
        };
        for task in 0..KEYS {
            let (keys, admitted) = (charging.keys.clone(), charging.admitted.clone());
            let (store, going) = (store.clone(), charging.going.clone());
            let turns = charging.turns.clone();
            let ask = async move {
                let mut ticks = tokio::time::interval(Duration::from_millis(1));
                for turn in task.. {
                    ticks.tick().await;
                    let [one, other] = [turn % KEYS, (turn + turn / KEYS) % KEYS];
                    let mut charges = vec![charge(&keys, one)];
                    if turn % 4 == 0 && one != other {
                        charges.push(charge(&keys, other));
                    }
                    let outcomes = store.charge(&charges, None).await.unwrap();
                    if outcomes.iter().all(|outcome| outcome.is_admitted()) {
                        admitted[one].fetch_add(1, SeqCst);
                        let second = charges.get(1).map(|_| &admitted[other]);
                        second.map(|count| count.fetch_add(1, SeqCst));
                    }
                    turns.fetch_add(1, SeqCst);
                    if !going.load(SeqCst) {
                        return;
                    }
                }
            };
            charging.tasks.spawn_on(ask, runtime.handle());
        }
        charging
    }

    /// Waits for this many further requests.
    fn progress(&self, turns: u64) {
        let start = self.turns.load(SeqCst);
        eventually(PATIENT, "requests", || self.turns.load(SeqCst) >= start + turns);
    }

    /// Stops, and takes all remaining units of each key.
    async fn end(self, store: &RedisStore) -> Vec<u64> {
        self.going.store(false, SeqCst);
        self.tasks.join_all().await;
        let mut counts = Vec::new();
        for place in 0..KEYS {
            let mut count = self.admitted[place].load(SeqCst);
            while store.charge(&[charge(&self.keys, place)], None).await.unwrap()[0].is_admitted() {
                count += 1;
            }
            counts.push(count);
        }
        counts
    }
}

/// A slot migrates back and forth while its keys are charged, with a pause half-way: every decision is right.
#[test]
fn slots_migrate_under_load() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let limiters = Limiters::connect_patiently(&cluster.url());
        let Limiters { runtime, store, .. } = &limiters;
        runtime.block_on(store.charge(&[charge(&keys("first"), 0)], None)).unwrap();
        let slot = only_slot(&cluster);
        for round in 1..=12 {
            let to = (cluster.owner(slot) + round) % 3;
            if to == cluster.owner(slot) {
                continue;
            }
            let charging = Charging::start(runtime, store, keys(round));
            charging.progress(100);
            cluster.begin_move(slot, to);
            charging.progress(100);
            let (redirects, turns) = (store.stats().redirects, charging.turns.load(SeqCst));
            cluster.migrate_keys(slot, to, KEYS / 2);
            // Requests for two keys are redirected until both are on one server.
            eventually(PATIENT, "requests or redirects", || {
                let is_redirected = store.stats().redirects > redirects + 50;
                is_redirected || charging.turns.load(SeqCst) > turns + 200
            });
            while cluster.migrate_keys(slot, to, 100) > 0 {}
            cluster.end_move(slot, to);
            charging.progress(100);
            let counts = runtime.block_on(charging.end(store));
            assert_eq!(counts, [AMOUNT; KEYS], "round {round}");
        }
        let refusals = |code| {
            let counts = cluster.nodes().iter().filter_map(|node| node.info(code));
            let count = |text: String| text.trim().strip_prefix("count=").unwrap().parse::<u64>();
            counts.map(|text| count(text).unwrap()).sum::<u64>()
        };
        let [moved, ask, again] =
            ["errorstat_MOVED", "errorstat_ASK", "errorstat_TRYAGAIN"].map(refusals);
        println!("{flavor}: {moved} MOVED, {ask} ASK, {again} TRYAGAIN");
        assert!(moved > 0 && ask > 0 && again > 0);
    }
}

/// While a slot is half migrated, single keys in it and other slots work.
#[test]
fn a_slot_is_half_migrated() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let limiters = Limiters::connect(&cluster.url());
        let store = &limiters.store;
        let old = keys("old");
        for place in 0..KEYS {
            limiters.runtime.block_on(store.charge(&[charge(&old, place)], None)).unwrap();
        }
        let slot = only_slot(&cluster);
        let (from, to) = (cluster.owner(slot), (cluster.owner(slot) + 1) % 3);
        cluster.begin_move(slot, to);
        cluster.migrate_keys(slot, to, KEYS / 2);
        let count = |node: usize| cluster.nodes()[node].command(&["DBSIZE"]).int();
        assert_eq!([count(from), count(to)], [5, 5]);
        let (closed, load) = (store.stats().closed, limiters.load());
        let (mut asked, mut failed, mut pairs) = (0, 0, 0);
        for turn in 0..50 {
            eventually(RETURN, "all are connected", || store.is_connected());
            let new = keys(format!("new-{turn}"));
            let answers = limiters.runtime.block_on(all_at_once(store, [&old, &new]));
            (asked, failed) = (asked + answers.len(), failed + failures(&answers));
            let pair = [charge(&old, 0), charge(&new, 1)];
            pairs += failures(&[limiters.runtime.block_on(store.charge(&pair, None))]);
        }
        let log = load.end(&limiters);
        log.assert_timely("half moved");
        let degraded = log.seen.iter().filter(|seen| seen.degraded).count();
        let closed = store.stats().closed - closed;
        println!(
            "{flavor}: {failed} of {asked} single keys failed, {pairs} of 50 pairs; \
             {degraded} of {} elsewhere; closed {closed} times",
            log.seen.len()
        );
        assert!(failed * 5 <= asked, "{failed} of {asked} requests for single keys failed");
        assert!(degraded * 5 <= log.seen.len(), "{degraded} of {} degraded", log.seen.len());
    }
}

type Answer = Result<pacegate::Outcomes, StoreError>;

/// Charges each key in a separate request, all at the same time.
async fn all_at_once(store: &RedisStore, sets: [&Vec<String>; 2]) -> Vec<Answer> {
    let mut asking = tokio::task::JoinSet::new();
    for (place, keys) in (0..KEYS).flat_map(|place| sets.map(|keys| (place, keys.clone()))) {
        let store = store.clone();
        asking.spawn(async move { store.charge(&[charge(&keys, place)], None).await });
    }
    asking.join_all().await
}

fn failures(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.is_err()).count()
}

/// While a replica takes over, failure modes apply; then the store decides again, exactly.
#[test]
fn a_master_is_killed() {
    for flavor in Flavor::ALL {
        let mut cluster = Cluster::start(flavor, 3, 1);
        let limiters = Limiters::connect(&cluster.url());
        assert!(!limiters.is_degraded());
        let owner = cluster.owner(only_slot(&cluster));
        let load = limiters.load();
        load.run_for(Duration::from_millis(200));
        cluster.nodes_mut()[owner].kill();
        limiters.wait_until_degraded();
        let replica = &cluster.nodes()[owner + 3];
        let promoted = || replica.info("role").as_deref() == Some("master");
        eventually(10 * RETURN, "the replica is the master", promoted);
        let back = limiters.wait_until_back();
        println!("{flavor}: back {back:?} after a replica took over");
        let log = load.end(&limiters);
        log.assert_timely("a master killed");
        log.assert_modes_hold();
        limiters.assert_exact();
        limiters.assert_window_exact(&cluster.nodes()[owner + 3]);
        cluster.nodes_mut()[owner].restart();
        let rejoined = || cluster.nodes()[owner].info("role").as_deref() == Some("slave");
        eventually(PATIENT, "the old master is a replica", rejoined);
        limiters.assert_exact();
    }
}

/// A cluster that starts after the store is found.
#[test]
fn a_cluster_starts_after_the_store() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let seed = Proxy::start(cluster.nodes()[0].address());
        seed.refuse(true);
        let limiters = Limiters::connect_later(&seed.url().replace("redis:", "redis+cluster:"));
        let load = limiters.load();
        load.run_for(Duration::from_millis(500));
        assert!(limiters.is_degraded());
        seed.refuse(false);
        let back = limiters.wait_until_back();
        println!("{flavor}: there {back:?} after its seed");
        let log = load.end(&limiters);
        log.assert_timely("a cluster that comes later");
        log.assert_modes_hold();
        limiters.assert_exact();
    }
}

/// Charges three keys in three slots; returns whether there was an answer.
async fn charge_apart(store: &RedisStore, limit: Limit) -> Result<pacegate::Outcomes, StoreError> {
    let charges = ["a", "b", "c"].map(|key| apart(key, limit));
    store.charge(&charges, None).await
}

fn apart(key: &'static str, limit: Limit) -> Charge<'static> {
    Charge::new("apart".parse().unwrap(), KeyRef::new(key.as_bytes()), limit)
}

/// A request over several servers takes at most one deadline if any of them hangs, and a cancelled request leaves no
/// part charged.
#[test]
fn requests_over_several_servers_keep_the_deadline() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let limiters = Limiters::connect(&cluster.url());
        let Limiters { store, runtime, .. } = &limiters;
        let limit = Limit::new(1_000_000, Duration::from_secs(1_000 * 3_600)).unwrap();
        for turn in 0..300 {
            let patience = Duration::from_micros(10 * (turn % 100));
            let giving_up = async { drop(timeout(patience, charge_apart(store, limit)).await) };
            runtime.block_on(giving_up);
        }
        let used = |key| {
            let peeked = runtime.block_on(store.charge(&[apart(key, limit).cost(0)], None));
            peeked.map_or(0, |outcomes| 1_000_000 - outcomes[0].remaining())
        };
        let all = || ["a", "b", "c"].map(used);
        eventually(RETURN, "all three are charged alike", || {
            let [a, b, c] = all();
            a > 0 && a == b && b == c
        });
        println!("{flavor}: {:?} charged by requests that timed out", all());
        for node in cluster.nodes() {
            node.pause();
            let took = (0..20).map(|_| {
                let start = now();
                drop(runtime.block_on(charge_apart(store, limit)));
                start.elapsed()
            });
            let mut took: Vec<Duration> = took.collect();
            took.sort_unstable();
            node.resume();
            println!("{flavor}: {:?} at most, {:?} typically", took[19], took[10]);
            assert!(took[16] < DEADLINE + Duration::from_millis(5), "{took:?}");
            let connected = || store.is_connected();
            eventually(RETURN, "it is back", connected);
        }
    }
}

/// Returns the node on which a charge creates a key.
fn node_of(cluster: &Cluster, charging: impl FnOnce()) -> usize {
    let sizes = || cluster.nodes().iter().map(|node| node.command(&["DBSIZE"]).int());
    let before: Vec<i64> = sizes().collect();
    charging();
    sizes().zip(before).position(|(after, before)| after > before).unwrap()
}

/// A denial by one server stands if another server of the request hangs: the failure mode does not apply.
#[test]
fn a_denial_stands_if_another_server_hangs() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let runtime = two_threads();
        let builder = RedisStore::builder(&cluster.url()).unwrap().deny_cache(0);
        let store = runtime.block_on(builder.deadline(Duration::from_secs(1)).connect()).unwrap();
        let long = Duration::from_secs(1_000 * 3_600);
        let spent = apart("spent", Limit::new(1, long).unwrap());
        let charge = |charges: &[Charge<'_>]| runtime.block_on(store.charge(charges, None));
        let place = node_of(&cluster, || drop(charge(&[spent]).unwrap()));
        let others = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let found = others.into_iter().find_map(|key| {
            let other = apart(key, Limit::new(100, long).unwrap());
            let place_of_other = node_of(&cluster, || drop(charge(&[other]).unwrap()));
            (place_of_other != place).then_some((other, place_of_other))
        });
        let (other, paused) = found.unwrap();
        cluster.nodes()[paused].pause();
        let answer = charge(&[spent, other]);
        cluster.nodes()[paused].resume();
        let outcomes = answer.unwrap();
        assert!(!outcomes[0].is_admitted(), "{outcomes:?}");
        assert!(outcomes[0].retry_after().is_some(), "{outcomes:?}");
        eventually(PATIENT, "it is back, and nothing was taken", || {
            charge(&[other.cost(0)]).is_ok_and(|outcomes| outcomes[0].remaining() == 99)
        });
    }
}

/// Redirections without a host lead to another port of the same host.
#[test]
fn redirections_without_a_host_are_followed() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start_with(flavor, 3, 0, |options| {
            options.arg("cluster-preferred-endpoint-type", "unknown-endpoint")
        });
        let runtime = two_threads();
        let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(PATIENT);
        let store = runtime.block_on(builder.connect()).unwrap();
        let unit = apart("a", Limit::new(10, Duration::from_secs(1_000 * 3_600)).unwrap());
        let left = || runtime.block_on(store.charge(&[unit], None)).unwrap()[0].remaining();
        assert_eq!(left(), 9);
        let slot = only_slot(&cluster);
        for expected in [8, 7] {
            cluster.move_slot(slot, (cluster.owner(slot) + 1) % 3);
            assert_eq!(left(), expected);
        }
        assert_eq!(store.stats().redirects, 2);
    }
}

/// A slot without a server for a while, in a cluster that serves the others, is found again.
#[test]
fn a_slot_without_a_server_is_found_again() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        for node in cluster.nodes() {
            node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
        let limiters = Limiters::connect(&cluster.url());
        let Limiters { runtime, store, .. } = &limiters;
        let keys = keys("given");
        let fails = || runtime.block_on(store.charge(&[charge(&keys, 0)], None)).err();
        assert_eq!(fails(), None);
        let slot = only_slot(&cluster);
        let unknown = || {
            let why = fails().map(|error| error.to_string()).unwrap_or_default();
            why.ends_with("no server of the cluster is known for the slot")
        };
        eventually(RETURN, "no server has the slot, and the store stays connected", || {
            // A gossip message that was on its way can give the slot back to its last server, also between the charges.
            for node in cluster.nodes() {
                node.command(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
            }
            (0..1_000).all(|_| unknown() && store.is_connected())
        });
        cluster.assign_slot(slot, 1);
        eventually(RETURN, "it is found", || fails().is_none());
    }
}

/// While a slot migrates, a key that a script empties cannot be created again on that server: nothing fails half-way.
#[test]
fn keys_are_emptied_while_their_slot_migrates() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let limiters = Limiters::connect_patiently(&cluster.url());
        let Limiters { runtime, store, .. } = &limiters;
        let (keys, short) = (keys("emptied"), Limit::new(5, Duration::from_millis(100)).unwrap());
        let two = |place: usize, permit| {
            let algorithm = [Algorithm::SlidingLog, Algorithm::Concurrency][place % 2];
            let mut charge = charge(&keys, place).cost(2);
            charge.limit = short.with_algorithm(algorithm).unwrap();
            charge.holding(permit)
        };
        let left = |unit: Charge<'_>| {
            let outcomes = runtime.block_on(store.charge(&[unit], None)).unwrap();
            outcomes[0].remaining()
        };
        (0..KEYS).for_each(|place| assert_eq!(left(two(place, 1)), 3));
        let slot = only_slot(&cluster);
        cluster.begin_move(slot, (cluster.owner(slot) + 1) % 3);
        for place in 0..KEYS {
            // All entries have expired and are removed by the next charge.
            let over = || left(two(place, 1).cost(0)) == 5;
            eventually(PATIENT, "all is past", over);
            assert_eq!(left(two(place, 1)), 3);
            match two(place, 1).limit.algorithm() {
                Algorithm::Concurrency => {
                    runtime.block_on(store.update(&two(place, 1), Update::Release)).unwrap()
                }
                _ => runtime.block_on(store.update(&two(place, 1), Update::Refund)).unwrap(),
            };
            // The key is gone, and the next charge creates it on the other server.
            assert_eq!(left(two(place, 1)), 3);
        }
        assert_eq!(store.stats().closed, 0);
    }
}

/// The same for a log that is shared with another limiter.
#[test]
fn a_shared_log_is_emptied_while_its_slot_migrates() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let slot = slot_of(b"sw:alice");
        let (owner, to) = (&cluster.nodes()[cluster.owner(slot)], (cluster.owner(slot) + 1) % 3);
        assert_eq!(owner.command(&["ZADD", "sw:alice", "1", "long ago"]).int(), 1);
        let runtime = two_threads();
        let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(PATIENT);
        let store = runtime.block_on(builder.layout(Layout::unix_time_log()).connect()).unwrap();
        cluster.begin_move(slot, to);
        "alice".with(|key| {
            let limit = "5/minute sliding-log".parse().unwrap();
            let unit = Charge::new("api".parse().unwrap(), key, limit);
            let outcomes = runtime.block_on(store.charge(&[unit], None)).unwrap();
            assert_eq!(outcomes[0].remaining(), 4, "{flavor}");
        });
        assert_eq!(owner.command(&["ZCARD", "sw:alice"]).int(), 1, "expired entries are removed");
    }
}
