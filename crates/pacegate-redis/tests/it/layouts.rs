//! Pacegate and another limiter on the same counters.

use std::{collections::BTreeMap, time::Duration};

use pacegate::{
    Algorithm, BuildError, Charge, Clock, Excess, Key, Limit, ManualClock, Policy, PolicySet,
    SharedLimiter, Store, StoreError, SystemClock, Timestamp, Update,
    algorithm::{Origin, Outcome},
    policy::Match,
};
use pacegate_redis::{ACL_RULES, LAYOUT_ACL_RULES, Layout, RedisStore};
use pacegate_testkit::{
    Random,
    servers::{Client, Cluster, Flavor, Reply, Server, eventually},
};
use tokio::runtime::Runtime;

use crate::{
    kit::{PATIENT, runtime},
    others::{Budget, Other, Servers, micros, must, sliding_total},
};

/// Pacegate with a layout, by default without deny cache, so that every request reaches the server.
struct Ours {
    store: RedisStore,
    runtime: Runtime,
}

impl Ours {
    fn new(url: &str, layout: impl Into<Layout>) -> Self {
        Self::caching(url, layout, 0)
    }

    fn caching(url: &str, layout: impl Into<Layout>, entries: usize) -> Self {
        let runtime = runtime();
        let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).deny_cache(entries);
        let store = runtime.block_on(builder.layout(layout).connect()).unwrap();
        Self { store, runtime }
    }

    fn try_charge(&self, key: impl Key, limit: Limit, cost: u64) -> Result<Outcome, StoreError> {
        key.with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit).cost(cost);
            self.runtime.block_on(self.store.charge(&[charge], None)).map(|outcomes| outcomes[0])
        })
    }

    fn charge(&self, key: &str, limit: Limit, cost: u64) -> Outcome {
        self.try_charge(key, limit, cost).unwrap()
    }

    fn refund(&self, key: &str, limit: Limit, cost: u64) {
        key.with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit).cost(cost);
            self.runtime.block_on(self.store.update(&charge, Update::Refund)).unwrap();
        });
    }

    fn reset(&self, key: &str, limit: Limit) -> Result<(), StoreError> {
        key.with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit);
            self.runtime.block_on(self.store.update(&charge, Update::Reset)).map(drop)
        })
    }
}

/// Returns a number of seconds such that no window of this length ends within the next minutes.
fn long_seconds(now: u64) -> u64 {
    let seconds = now / 1_000_000;
    (3_600..).step_by(600).find(|period| period - seconds % period > 300).unwrap()
}

/// Returns the count of a key.
fn counted(client: &mut Client, other: Other, name: &str) -> u64 {
    let words = if other.is_log() { ["ZCARD", name] } else { ["GET", name] };
    must(client, &words).int() as u64
}

/// Asserts the remaining lifetime of a key, which was set after `since`.
fn assert_lives(client: &mut Client, name: &str, seconds: u64, since: u64) {
    let left = must(client, &["PTTL", name]).int();
    let passed = (micros(client) - since) / 1_000;
    let whole = seconds as i64 * 1_000;
    // The server rounds to milliseconds at another moment.
    let expected = whole - passed as i64 - 2..=whole;
    assert!(expected.contains(&left), "{name} lives for {left} ms, not {expected:?}");
}

/// Asserts that the times are exact by the server's clock, which was between `before` and `after`.
fn assert_hints(outcome: &Outcome, end: u64, (before, after): (u64, u64)) {
    let wait = outcome.retry_after().unwrap().as_micros() as u64;
    assert!((before..=after).contains(&(end - wait)), "{wait} before {end}, at {before}..{after}");
}

/// Charges one counter in turns until it is used up, and beyond.
fn share_one(
    servers: &mut Servers<'_>,
    ours: &Ours,
    other: Other,
    budget: &Budget,
    random: &mut Random,
) {
    let limit = other.limit(budget);
    let start = servers.micros();
    let name = other.name(budget, start);
    let attempts = 2 * budget.amount + 3;
    let mut admitted = 0;
    for attempt in 1..=attempts {
        let before = servers.micros();
        if random.one_in(2) {
            admitted += u64::from(servers.check(other, budget));
        } else {
            let outcome = ours.charge(&budget.key, limit, 1);
            admitted += u64::from(outcome.is_admitted());
            assert_eq!(outcome.remaining(), budget.amount.saturating_sub(attempt));
            if !outcome.is_admitted() && other.is_fixed() {
                let period = budget.seconds * 1_000_000;
                let end = start - start % period + period;
                assert_hints(&outcome, end, (before, servers.micros()));
                assert_eq!(outcome.reset_after(), outcome.retry_after().unwrap());
            }
        }
        if attempt == 1 {
            assert_lives(servers.of(&name), &name, other.life(budget.seconds), before);
        }
    }
    assert_eq!(admitted, budget.amount, "{other:?} {budget:?}");
    let expected = if other.is_log() { budget.amount } else { attempts };
    assert_eq!(counted(servers.of(&name), other, &name), expected, "{name}");
}

#[test]
fn together_they_admit_the_limit_in_each_of_100_windows() {
    for (flavor, other) in
        Flavor::ALL.into_iter().flat_map(|flavor| Other::ALL.map(|o| (flavor, o)))
    {
        let server = Server::start(flavor);
        let mut servers = Servers::one(&server);
        let ours = Ours::new(&server.url(), other.layout());
        let mut random = Random::new(7);
        let (now, mut names) = (servers.micros(), Vec::new());
        for window in 0..100 {
            let amount = random.between(1, 12);
            let budget =
                Budget { key: format!("user-{window}"), amount, seconds: long_seconds(now) };
            share_one(&mut servers, &ours, other, &budget, &mut random);
            names.push(other.name(&budget, now));
        }
        let mut found: Vec<String> =
            server.command(&["KEYS", "*"]).items().iter().map(|name| name.text()).collect();
        names.sort();
        found.sort();
        assert_eq!(found, names, "{flavor} has these keys, and no others");
    }
}

/// Units admitted in a window, certainly and possibly: a request across its end may be in either window.
#[derive(Debug, Default)]
struct Admitted {
    certainly: u64,
    perhaps: u64,
}

/// Charges windows of a second as fast as possible, until five have ended.
fn cross_boundaries(servers: &mut Servers<'_>, url: &str, others: &[Other]) {
    let budget = Budget { key: "{alice}".to_owned(), amount: 12, seconds: 1 };
    let ours: Vec<Ours> = others.iter().map(|other| Ours::new(url, other.layout())).collect();
    let first = servers.micros() / 1_000_000;
    let mut random = Random::new(11);
    let mut seen: BTreeMap<(usize, u64), Admitted> = BTreeMap::new();
    while servers.micros() / 1_000_000 <= first + 5 {
        for (place, &other) in others.iter().enumerate() {
            let from = servers.micros() / 1_000_000;
            let admitted = if random.one_in(2) {
                servers.check(other, &budget)
            } else {
                ours[place].charge(&budget.key, other.limit(&budget), 1).is_admitted()
            };
            let to = servers.micros() / 1_000_000;
            if from == to {
                seen.entry((place, from)).or_default().certainly += u64::from(admitted);
                continue;
            }
            for window in from..=to {
                seen.entry((place, window)).or_default().perhaps += u64::from(admitted);
            }
        }
    }
    for (place, other) in others.iter().enumerate() {
        for window in first + 1..=first + 5 {
            let Admitted { certainly, perhaps } = seen[&(place, window)];
            let within = certainly <= budget.amount && certainly + perhaps >= budget.amount;
            assert!(within, "{other:?} admitted {certainly} and perhaps {perhaps}");
        }
    }
}

fn windows() -> Vec<Other> {
    Other::ALL.into_iter().filter(|other| other.is_fixed()).collect()
}

#[test]
fn every_real_window_starts_at_zero_on_redis() {
    let server = Server::start(Flavor::Redis);
    cross_boundaries(&mut Servers::one(&server), &server.url(), &windows());
}

#[test]
fn every_real_window_starts_at_zero_on_valkey() {
    let server = Server::start(Flavor::Valkey);
    cross_boundaries(&mut Servers::one(&server), &server.url(), &windows());
}

/// Returns the scores of a log, oldest first.
fn scores(client: &mut Client, name: &str) -> Vec<u64> {
    let reply = must(client, &["ZRANGE", name, "0", "-1", "WITHSCORES"]);
    reply.items().iter().skip(1).step_by(2).map(|score| score.int() as u64).collect()
}

/// Charges a log as fast as possible while entries expire, and compares each answer with the entries.
fn follow_log(server: &Server, other: Other) {
    let budget = Budget { key: "alice".to_owned(), amount: 4, seconds: 1 };
    let (limit, tick) = (other.limit(&budget), other.tick().unwrap());
    let width = budget.seconds * 1_000_000 / tick;
    let ours = Ours::new(&server.url(), other.layout());
    let mut client = server.connect().unwrap();
    let (mut random, start) = (Random::new(13), micros(&mut client));
    let name = other.name(&budget, start);
    let mut left = 0;
    while left < 5 * budget.amount {
        let entries = scores(&mut client, &name);
        let before = micros(&mut client);
        let outcome = (!random.one_in(2)).then(|| ours.charge(&budget.key, limit, 1));
        let admitted = match &outcome {
            Some(outcome) => outcome.is_admitted(),
            None => other.check(&mut client, &budget),
        };
        let after = micros(&mut client);
        left += u64::from(admitted);
        let live_at = |now: u64| {
            entries.iter().filter(|&&score| score + width > now / tick).copied().collect::<Vec<_>>()
        };
        let live = live_at(before);
        if live != live_at(after) {
            continue;
        }
        assert_eq!(admitted, live.len() < 4, "{other:?} with {live:?} at {before}");
        if let (false, Some(outcome)) = (admitted, outcome) {
            assert_hints(&outcome, (live[0] + width) * tick, (before, after));
            let newest = (live[live.len() - 1] + width) * tick;
            let reset = outcome.reset_after().as_micros() as u64;
            assert!((before..=after).contains(&(newest - reset)));
        }
    }
}

#[test]
fn log_entries_expire_on_time() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        follow_log(&server, Other::RlaasLog);
        follow_log(&server, Other::UnixTimeLog);
    }
}

#[test]
fn the_lifetime_restarts_as_with_the_other_limiter() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut servers = Servers::one(&server);
        let now = servers.micros();
        for (other, theirs) in Other::ALL.into_iter().flat_map(|o| [(o, false), (o, true)]) {
            let ours = Ours::new(&server.url(), other.layout());
            let key = format!("{other:?}-{theirs}");
            let budget = Budget { key, amount: 10, seconds: long_seconds(now) };
            let name = other.name(&budget, now);
            let charge = |servers: &mut Servers<'_>| {
                if theirs {
                    assert!(servers.check(other, &budget));
                } else {
                    assert!(ours.charge(&budget.key, other.limit(&budget), 1).is_admitted());
                }
            };
            charge(&mut servers);
            let since = servers.micros();
            must(servers.of(&name), &["EXPIRE", &name, "777"]);
            charge(&mut servers);
            let life = if other.refreshes() { other.life(budget.seconds) } else { 777 };
            assert_lives(servers.of(&name), &name, life, since);
        }
    }
}

#[test]
fn a_denied_request_restarts_the_lifetime_as_with_the_other_limiter() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut servers = Servers::one(&server);
        let now = servers.micros();
        for (other, theirs) in Other::ALL.into_iter().flat_map(|o| [(o, false), (o, true)]) {
            let ours = Ours::new(&server.url(), other.layout());
            let key = format!("{other:?}-{theirs}");
            let budget = Budget { key, amount: 1, seconds: long_seconds(now) };
            let (name, limit) = (other.name(&budget, now), other.limit(&budget));
            assert!(ours.charge(&budget.key, limit, 1).is_admitted());
            let since = servers.micros();
            must(servers.of(&name), &["EXPIRE", &name, "777"]);
            assert!(!ours.charge(&budget.key, limit, 0).is_admitted());
            assert_lives(servers.of(&name), &name, 777, since);
            let admitted = match theirs {
                true => servers.check(other, &budget),
                false => ours.charge(&budget.key, limit, 1).is_admitted(),
            };
            assert!(!admitted);
            let life = if other.refreshes_denied() { other.life(budget.seconds) } else { 777 };
            assert_lives(servers.of(&name), &name, life, since);
        }
    }
}

/// Charges consecutive windows of the sliding-window class at times of the test's clock, both sides in turns.
#[test]
fn the_sliding_windows_of_both_sides_agree_at_every_millisecond() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let runtime = runtime();
        let clock = ManualClock::new();
        let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        let builder = builder.layout(Layout::typescript_sliding()).clock(clock.clone());
        let store = runtime.block_on(builder.connect()).unwrap();
        let ours = Ours { store, runtime };
        let mut random = Random::new(19);
        for (seconds, amount) in [(1, 3), (7, 10), (10, 10), (60, 25)] {
            let budget = Budget { key: format!("{seconds}-{amount}"), amount, seconds };
            let limit = Other::TypeScriptSliding.limit(&budget);
            for _ in 0..300 {
                clock.advance(Duration::from_millis(random.between(0, seconds * 200)));
                let now = clock.now().as_micros();
                // The expected outcome of the next request, on either side.
                let peeked = ours.charge(&budget.key, limit, 0);
                let total = match random.one_in(2) {
                    true => sliding_total(&mut client, &budget, now),
                    false => {
                        let outcome = ours.charge(&budget.key, limit, 1);
                        assert_eq!(outcome.is_admitted(), peeked.is_admitted());
                        let after = ours.charge(&budget.key, limit, 0);
                        assert_eq!(outcome.remaining(), after.remaining());
                        continue;
                    }
                };
                assert_eq!(peeked.is_admitted(), total <= amount, "{budget:?} at {now}");
                assert_eq!(peeked.remaining(), (amount + 1).saturating_sub(total).min(amount));
            }
        }
    }
}

#[test]
fn counts_continue_beyond_the_limit() {
    let server = Server::start(Flavor::Redis);
    let mut servers = Servers::one(&server);
    let now = servers.micros();
    for other in Other::ALL {
        let ours = Ours::new(&server.url(), other.layout());
        let budget = Budget { key: format!("{other:?}"), amount: 2, seconds: long_seconds(now) };
        let limit = other.limit(&budget);
        for attempt in 1..=5_u64 {
            match attempt % 2 {
                0 => drop(servers.check(other, &budget)),
                _ => drop(ours.charge(&budget.key, limit, 1)),
            }
            let count = ours.runtime.block_on(ours.store.count(&*budget.key, limit)).unwrap();
            assert_eq!(count, if other.is_log() { attempt.min(2) } else { attempt }, "{other:?}");
        }
    }
    let native = Ours::new(&server.url(), Layout::native());
    let count = native.runtime.block_on(native.store.count("alice", Limit::per_minute(5)));
    assert!(matches!(count, Err(StoreError::Unsupported(_))), "{count:?}");
}

#[test]
fn a_huge_cost_does_not_make_the_counter_overflow() {
    let server = Server::start(Flavor::Redis);
    let ours = Ours::new(&server.url(), Layout::rlaas());
    let limit = Limit::per_hour(5);
    for cost in [u64::MAX, 1 << 63, 1 << 62, 1 << 62] {
        let counted = "alice".with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit).cost(cost);
            let charge = charge.excess(Excess::Count);
            ours.runtime.block_on(ours.store.charge(&[charge], None)).unwrap()[0]
        });
        assert!(!counted.is_admitted());
    }
    assert!(!ours.charge("alice", limit, 1).is_admitted());
}

#[test]
fn a_limit_that_the_layout_cannot_count_fails_to_build() {
    let server = Server::start(Flavor::Valkey);
    let problem = |layout: Layout, policy: Policy| {
        let ours = Ours::new(&server.url(), layout);
        let policies = PolicySet::new([policy]).unwrap();
        match SharedLimiter::builder(ours.store.clone()).policies(policies).build() {
            Err(BuildError::Store { policy, error }) => format!("{policy}: {error}"),
            other => panic!("{other:?}"),
        }
    };
    let policy = |limits: &[&str]| {
        let limits = limits.iter().map(|limit| limit.parse::<Limit>().unwrap());
        Policy::new("api", limits)
    };
    let refused = problem(Layout::rlaas_log(), policy(&["5/10s"]));
    assert!(
        refused.starts_with("api: the store cannot do this: the layout `rlaas:rate_limit:{key}`")
    );
    for limit in ["5/10s sliding-window", "5/second burst 9", "5/10s concurrency"] {
        let refused = problem(Layout::valkey_api(), policy(&[limit]));
        assert!(refused.contains("use the algorithm fixed-window"), "{refused}");
    }
    let lease = policy(&["100/10s"]).leased("5%".parse().unwrap());
    assert!(problem(Layout::valkey_api(), lease).contains("remove the policy's lease"));
    let fine = policy(&["5/10s"]);
    let overriding = fine.clone().overriding(Match::any(), ["5/1500ms"]);
    assert!(problem(Layout::typescript(), overriding).contains("a period such as 2s"));
    let two = policy(&["5/10s sliding-log", "50/minute sliding-log"]);
    assert!(problem(Layout::unix_time_log(), two).contains("one log for all periods"));
    let ours = Ours::new(&server.url(), Layout::valkey_api());
    let policies = PolicySet::new([fine]).unwrap();
    SharedLimiter::builder(ours.store.clone()).policies(policies).build().unwrap();
}

#[test]
fn layouts_with_two_windows_are_rejected_on_a_cluster() {
    let cluster = Cluster::start(Flavor::Valkey, 3, 0);
    let ours = Ours::new(&cluster.url(), Layout::typescript_sliding());
    let builder = SharedLimiter::builder(ours.store.clone()).limit("5/10s sliding-window");
    assert!(builder.build().unwrap_err().to_string().contains("use a single server"));
}

#[test]
fn a_key_without_an_expiry_gets_one() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let now = micros(&mut client);
        for other in Other::ALL {
            let ours = Ours::new(&server.url(), other.layout());
            let budget = Budget { key: "alice".to_owned(), amount: 1, seconds: long_seconds(now) };
            let name = other.name(&budget, now);
            match other.tick() {
                None => must(&mut client, &["SET", &name, "1"]),
                Some(tick) => must(&mut client, &["ZADD", &name, &(now / tick).to_string(), "x"]),
            };
            let limit = other.limit(&budget);
            assert!(!ours.charge("alice", limit, 0).is_admitted());
            assert_eq!(must(&mut client, &["PTTL", &name]).int(), -1, "a question changes nothing");
            let since = micros(&mut client);
            assert!(!ours.charge("alice", limit, 1).is_admitted());
            assert_lives(&mut client, &name, other.life(budget.seconds), since);
        }
    }
}

#[test]
fn foreign_values_are_errors_and_stay_unchanged() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let now = micros(&mut client);
        for other in Other::ALL {
            let ours = Ours::new(&server.url(), other.layout());
            let budget = Budget { key: "alice".to_owned(), amount: 9, seconds: long_seconds(now) };
            let (name, limit) = (other.name(&budget, now), other.limit(&budget));
            let text = if other.is_log() { "17" } else { "seventeen" };
            for plant in [["RPUSH", &name, "a"], ["SADD", &name, "a"], ["SET", &name, text]] {
                must(&mut client, &["DEL", &name]);
                must(&mut client, &plant);
                let before = must(&mut client, &["DUMP", &name]);
                for cost in [0, 1, 2] {
                    let failed = ours.try_charge("alice", limit, cost);
                    assert!(matches!(failed, Err(StoreError::Failed(_))), "{plant:?}: {failed:?}");
                }
                assert!(matches!(ours.reset("alice", limit), Err(StoreError::Failed(_))));
                assert_eq!(must(&mut client, &["DUMP", &name]), before, "{plant:?}");
                assert_eq!(must(&mut client, &["PTTL", &name]).int(), -1, "{plant:?}");
            }
            must(&mut client, &["DEL", &name]);
            assert!(ours.charge("alice", limit, 1).is_admitted(), "the store still decides");
        }
    }
}

#[test]
fn unsupported_limits_are_rejected() {
    let server = Server::start(Flavor::Valkey);
    let odd = |limit: &str| limit.parse::<Limit>().unwrap();
    for other in Other::ALL {
        let ours = Ours::new(&server.url(), other.layout());
        let algorithm = other.algorithm().name();
        let refused = |limit| match ours.try_charge("alice", limit, 1) {
            Err(StoreError::Unsupported(text)) => text,
            answer => panic!("{other:?}: {answer:?}"),
        };
        assert!(refused(odd("9/second burst 9")).contains(algorithm));
        let month = refused(odd("9/month"));
        assert!(month.contains("calendar periods") || month.contains(algorithm), "{month}");
        let half = odd(&format!("9/1500ms {algorithm}"));
        if other == Other::Spring {
            assert!(ours.charge("alice", half, 1).is_admitted());
        } else {
            assert!(refused(half).contains("use a period such as 2s"));
        }
    }
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);
}

#[test]
fn refunds_return_at_most_the_used_units() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let now = micros(&mut client);
        for other in Other::ALL {
            // Two of them use the same names.
            must(&mut client, &["FLUSHALL"]);
            let ours = Ours::caching(&server.url(), other.layout(), 100);
            let budget = Budget { key: "alice".to_owned(), amount: 9, seconds: long_seconds(now) };
            let (name, limit) = (other.name(&budget, now), other.limit(&budget));
            let remaining = || ours.charge("alice", limit, 0).remaining();
            ours.refund("alice", limit, 1);
            assert_eq!(must(&mut client, &["EXISTS", &name]).int(), 0, "nothing to give back");
            assert_eq!(ours.charge("alice", limit, 7).remaining(), 2);
            ours.refund("alice", limit, 3);
            assert_eq!(remaining(), 5);
            ours.refund("alice", limit, 100);
            assert_eq!(remaining(), 9);
            assert_eq!(ours.charge("alice", limit, 2).remaining(), 7);
            ours.refund("alice", limit, u64::MAX);
            assert_eq!(remaining(), 9);
            assert!(ours.charge("alice", limit, 9).is_admitted());
            assert!(!ours.charge("alice", limit, 1).is_admitted());
            ours.reset("alice", limit).unwrap();
            assert_eq!(must(&mut client, &["EXISTS", &name]).int(), 0);
            assert!(ours.charge("alice", limit, 9).is_admitted(), "the denial is forgotten too");
            assert!(must(&mut client, &["PTTL", &name]).int() > 0);
        }
    }
}

#[test]
fn denied_windows_are_cached_and_logs_are_not() {
    let server = Server::start(Flavor::Redis);
    let mut client = server.connect().unwrap();
    let now = micros(&mut client);
    for other in Other::ALL {
        // Two of them use the same names.
        must(&mut client, &["FLUSHALL"]);
        let ours = Ours::caching(&server.url(), other.layout(), 100);
        let budget = Budget { key: "alice".to_owned(), amount: 2, seconds: long_seconds(now) };
        let limit = other.limit(&budget);
        let outcomes: Vec<Outcome> = (0..9).map(|_| ours.charge("alice", limit, 1)).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_admitted()).count(), 2);
        let cached =
            outcomes.iter().filter(|outcome| outcome.origin() == Origin::DenyCache).count();
        assert_eq!(cached, if other.is_fixed() { 6 } else { 0 });
        let name = other.name(&budget, now);
        let sent = match other.algorithm() {
            Algorithm::SlidingLog => 2,
            Algorithm::SlidingWindow => 9,
            _ => 3,
        };
        assert_eq!(counted(&mut client, other, &name), sent);
    }
}

#[test]
fn concurrent_requests_share_a_call() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let now = micros(&mut client);
        for other in Other::ALL {
            // Two of them use the same names.
            must(&mut client, &["FLUSHALL"]);
            let ours = Ours::new(&server.url(), other.layout());
            let budget = Budget { key: "alice".to_owned(), amount: 40, seconds: long_seconds(now) };
            let limiter = SharedLimiter::new(
                ours.store.clone(),
                PolicySet::of_limits([other.limit(&budget)]).unwrap(),
            );
            ours.charge("somebody", other.limit(&budget), 1);
            let before = ours.store.stats();
            let admitted = ours.runtime.block_on(async {
                let check = |_| {
                    tokio::spawn({
                        let limiter = limiter.clone();
                        async move { limiter.check("alice").await.unwrap().is_allowed() }
                    })
                };
                let checks: Vec<_> = (0..300).map(check).collect();
                let mut admitted = 0;
                for check in checks {
                    admitted += u64::from(check.await.unwrap());
                }
                admitted
            });
            assert_eq!(admitted, 40, "{other:?}");
            let stats = ours.store.stats();
            assert_eq!(stats.requests - before.requests, 300);
            assert_eq!(stats.calls - before.calls, 1);
            let counted = counted(&mut client, other, &other.name(&budget, now));
            assert_eq!(counted, if other.is_log() { 40 } else { 300 });
        }
    }
}

/// Sends requests with the name of a window that has ended when they arrive; on a cluster often to the wrong server.
fn come_late(servers: &mut Servers<'_>, nodes: &[Server], url: &str) {
    let other = Other::TypeScript;
    let ours = Ours::new(url, other.layout());
    let mut budget = Budget { key: String::new(), amount: 9, seconds: 1 };
    let (limit, clock) = (other.limit(&budget), SystemClock::new());
    ours.charge("somebody", limit, 1);
    let window = |now: Timestamp| now.as_micros() / 1_000_000;
    let mut late = 0;
    for user in 0..20 {
        budget.key = format!("user-{user}");
        let before = ours.store.stats().trips;
        let sent_in = window(clock.now());
        nodes.iter().for_each(Server::pause);
        let outcome = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ours.charge(&budget.key, limit, 1));
            eventually(PATIENT, "the window ends", || window(clock.now()) > sent_in);
            nodes.iter().for_each(Server::resume);
            asked.join().unwrap()
        });
        assert!(outcome.is_admitted());
        let now = servers.micros();
        let [old, new] = [sent_in * 1_000_000, now].map(|then| other.name(&budget, then));
        let mut count = |name: &str| match servers.of(name).command(&["GET", name]).unwrap() {
            Reply::Nil => 0,
            count => count.int(),
        };
        // It may have been sent after the end of the window, or counted just before the next one.
        let trips = ours.store.stats().trips - before;
        if trips == 2 && now / 1_000_000 == sent_in + 1 {
            assert_eq!((count(&old), count(&new), outcome.remaining()), (0, 1, 8));
            late += 1;
        }
        if late == 3 {
            assert_eq!(ours.store.stats().redirects, 0, "keys are looked for where they are");
            return;
        }
    }
    panic!("only {late} came late");
}

#[test]
fn a_request_that_arrives_in_the_next_window_is_counted_there_once() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        come_late(&mut Servers::one(&server), std::slice::from_ref(&server), &server.url());
    }
}

#[test]
fn limits_of_one_request_are_charged_one_after_the_other() {
    let server = Server::start(Flavor::Valkey);
    let mut client = server.connect().unwrap();
    let layout = Layout::template("app:{key}:{window_start}:{window_start_ms}").unwrap();
    let layout = layout.ttl_slack(Duration::from_secs(7)).refresh_ttl();
    let ours = Ours::new(&server.url(), layout);
    let seconds = long_seconds(micros(&mut client));
    // Windows that begin at the same time would have the same name.
    let apart = |period: &u64| micros(&mut client) / 1_000_000 % period > seconds;
    let longer = (24..).map(|times| times * seconds).find(apart).unwrap();
    let limits = [(2, seconds), (9, longer)]
        .map(|(amount, period)| Limit::new(amount, Duration::from_secs(period)).unwrap());
    let limiter = SharedLimiter::new(ours.store.clone(), PolicySet::of_limits(limits).unwrap());
    let check = || ours.runtime.block_on(limiter.check(("eu", "alice"))).unwrap().is_allowed();
    let since = micros(&mut client);
    assert_eq!([check(), check(), check()], [true, true, false]);
    let now = micros(&mut client) / 1_000_000;
    for (period, limit) in [seconds, longer].into_iter().zip(limits) {
        let start = now - now % period;
        let name = format!("app:eu:alice:{start}:{start}000");
        assert_eq!(must(&mut client, &["GET", &name]).int(), 3, "{limit}: denied, and counted");
        assert_lives(&mut client, &name, period + 7, since);
    }
    assert_eq!(ours.store.stats().trips, 4, "one for each, and one to load the script");
}

#[test]
fn a_full_server_keeps_counting_but_creates_no_keys() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let seconds = long_seconds(micros(&mut client));
        for other in [Other::Rlaas, Other::UnixTimeLog] {
            let ours = Ours::new(&server.url(), other.layout());
            let limit = other.limit(&Budget { key: String::new(), amount: 9, seconds });
            assert!(ours.charge("old", limit, 1).is_admitted());
            must(&mut client, &["CONFIG", "SET", "maxmemory", "1"]);
            assert_eq!(ours.charge("old", limit, 1).remaining(), 7);
            let failed = ours.try_charge("new", limit, 1);
            assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
            must(&mut client, &["CONFIG", "SET", "maxmemory", "0"]);
            assert_eq!(ours.charge("new", limit, 1).remaining(), 8);
        }
    }
}

#[test]
fn layouts_work_with_minimal_permissions() {
    for flavor in Flavor::ALL {
        for other in Other::ALL {
            let rights = format!("{} {ACL_RULES} {LAYOUT_ACL_RULES}", other.keys());
            let user = format!("pacegate on >secret {rights}");
            let server = Server::options(flavor).acl("default off").acl(&user).start();
            let seconds = long_seconds(micros(&mut server.connect().unwrap()));
            let limit = other.limit(&Budget { key: String::new(), amount: 3, seconds });
            let url = format!("redis://pacegate:secret@{}", server.address());
            let ours = Ours::new(&url, other.layout());
            let admitted = [0, 1, 2, 1].map(|cost| ours.charge("alice", limit, cost).is_admitted());
            assert_eq!(admitted, [true, true, true, false]);
            ours.refund("alice", limit, 1);
            ours.reset("alice", limit).unwrap();
            let refused = server.command(&["ACL", "LOG"]);
            assert!(refused.items().is_empty(), "{flavor} {other:?}: {refused:?}");
        }
    }
}

#[test]
fn layouts_work_on_a_cluster() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let mut servers = Servers::cluster(&cluster);
        let mut random = Random::new(17);
        let now = servers.micros();
        for other in Other::ALL.into_iter().filter(|other| other.layout().works_on_cluster()) {
            let ours = Ours::new(&cluster.url(), other.layout());
            for user in 0..20 {
                // A script that builds its key works on a cluster only with a hash tag.
                let tagged = other == Other::Rlaas || user % 2 == 0;
                let key = if tagged { format!("{{user-{user}}}") } else { format!("user-{user}") };
                let budget =
                    Budget { key, amount: random.between(1, 9), seconds: long_seconds(now) };
                share_one(&mut servers, &ours, other, &budget, &mut random);
            }
        }
        cross_boundaries(&mut servers, &cluster.url(), &[Other::TypeScript, Other::Spring]);
        come_late(&mut servers, cluster.nodes(), &cluster.url());
    }
}
