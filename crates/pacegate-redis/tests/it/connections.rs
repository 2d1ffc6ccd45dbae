//! Forms of addresses, and errors of unreachable servers.

use std::time::Duration;

use pacegate::{
    BatchDecision, Charge, Counter, Decision, KeyRef, Limit, Limiter, Policy, PolicyName,
    PolicySet, Request, SharedLimiter, Store,
    policy::{Condition, FailureMode::Closed},
};
use pacegate_redis::{ConnectError, RedisStore};
use pacegate_testkit::servers::{Certificates, Flavor, Server};

use crate::kit::{PATIENT, runtime};

/// Asserts that a limit of two allows two requests and denies the third.
async fn works(store: RedisStore) {
    let policies = PolicySet::of_limits([Limit::per_day(2)]).unwrap();
    let limiter = SharedLimiter::new(store, policies);
    for (expected, left) in [(true, 1), (true, 0), (false, 0)] {
        let decision = limiter.check("alice").await.unwrap();
        assert!(!decision.is_degraded());
        assert_eq!((decision.is_allowed(), decision.remaining()), (expected, left));
    }
    limiter.reset("alice").await.unwrap();
}

async fn connect(url: &str) -> Result<RedisStore, ConnectError> {
    RedisStore::builder(url)?.deadline(PATIENT).connect().await
}

#[test]
fn passwords_users_databases_and_sockets() {
    for flavor in Flavor::ALL {
        let options = Server::options(flavor).password("s3cret:@/").unix_socket();
        let server = options.acl("alice on >w0nder ~pg:* +@all").start();
        runtime().block_on(async {
            let address = server.address();
            for url in [
                format!("redis://:s3cret%3A%40%2F@{address}"),
                format!("valkey://alice:w0nder@{address}/3"),
                format!("redis+unix://:s3cret%3A%40%2F@{}?db=1", server.socket().display()),
            ] {
                works(connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"))).await;
            }
            let wrong = connect(&format!("redis://alice:wrong@{address}")).await.unwrap_err();
            assert!(wrong.to_string().contains("WRONGPASS"), "{wrong}");
            assert!(!wrong.to_string().contains("wrong@"), "{wrong}");
        });
    }
}

#[test]
fn tls_is_verified() {
    for flavor in Flavor::ALL {
        let (certificates, others) = (Certificates::new(), Certificates::new());
        let server = Server::options(flavor).tls(&certificates).start();
        let url = |ca: &Certificates| {
            format!(
                "rediss://127.0.0.1:{}?ca={}&cert={}&key={}",
                server.port(),
                ca.ca().display(),
                certificates.client_cert().display(),
                certificates.client_key().display(),
            )
        };
        runtime().block_on(async {
            works(connect(&url(&certificates)).await.unwrap()).await;
            let stranger = connect(&url(&others)).await.unwrap_err().to_string();
            assert!(stranger.contains("certificate"), "{stranger}");
        });
    }
}

/// Such a certificate is accepted only if it is the configured CA, and only for its names.
#[test]
fn a_self_signed_certificate_is_accepted_if_it_is_the_ca() {
    let (certificates, others) = (Certificates::self_signed(), Certificates::self_signed());
    let options = Server::options(Flavor::Redis).tls(&certificates);
    let server = options.arg("bind", "127.0.0.1 127.0.0.2").start();
    let url = |host: &str, ca: &Certificates| {
        format!("rediss://{host}:{}?ca={}", server.port(), ca.ca().display())
    };
    runtime().block_on(async {
        works(connect(&url("localhost", &certificates)).await.unwrap()).await;
        for (host, ca) in [("127.0.0.1", &others), ("127.0.0.2", &certificates)] {
            let error = connect(&url(host, ca)).await.unwrap_err().to_string();
            assert!(error.contains("certificate"), "{host}: {error}");
        }
    });
}

#[test]
fn prefixes_and_secrets_separate_counters() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let builder = || RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        works(builder().connect().await.unwrap()).await;
        let limiters = [
            builder().connect().await.unwrap(),
            builder().prefix("other:{}").connect().await.unwrap(),
            builder().secret("pepper").connect().await.unwrap(),
        ];
        for store in limiters {
            let limiter = SharedLimiter::builder(store).limit("1/day").build().unwrap();
            assert!(limiter.check("alice").await.unwrap().is_allowed());
        }
        let keys = server.command(&["KEYS", "*"]);
        let mut names: Vec<String> = keys.items().iter().map(|name| name.text()).collect();
        names.sort();
        assert_eq!(names.len(), 3);
        assert!(names[0].starts_with("other:{"), "{names:?}");
        assert!(names[1].starts_with("pg:{") && names[2].starts_with("pg:{"), "{names:?}");
    });
}

#[test]
fn debug_output_hides_secrets() {
    let builder = RedisStore::builder("redis://u:hunter2@a").unwrap().secret("pepper");
    let shown = format!("{builder:?}");
    assert!(shown.contains("secret: ***"), "{shown}");
    // Debug output of bytes is numbers.
    assert!(!shown.contains("pepper") && !shown.contains("112, 101"), "{shown}");
    assert!(!shown.contains("hunter"), "{shown}");
}

/// A request with an id is counted once, from any number of clients.
#[test]
fn the_same_id_counts_once() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let limiter = |store| SharedLimiter::builder(store).limit("3/day").build().unwrap();
            let one = limiter(connect(&server.url()).await.unwrap());
            let other = limiter(connect(&server.url()).await.unwrap());
            let request = |id: &'static str| Request::new().with("key", "alice").id(id).unwrap();
            for limiter in [&one, &other, &one] {
                let decision = limiter.check_request(&request("first")).await.unwrap();
                assert_eq!((decision.is_allowed(), decision.remaining()), (true, 2));
            }
            assert_eq!(one.check_request(&request("second")).await.unwrap().remaining(), 1);
            assert_eq!(one.check("alice").await.unwrap().remaining(), 0);
            for limiter in [&one, &other] {
                assert!(!limiter.check_request(&request("third")).await.unwrap().is_allowed());
                assert!(limiter.check_request(&request("first")).await.unwrap().is_allowed());
            }
        });
    }
}

/// A client that sends one id with every request gets four requests for free; later ones are charged.
#[test]
fn an_answer_is_repeated_four_times() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let store = connect(&server.url()).await.unwrap();
            let limiter = SharedLimiter::builder(store).limit("3/day").build().unwrap();
            let request = Request::new().with("key", "alice").id("again").unwrap();
            let mut told = Vec::new();
            for _ in 0..50 {
                let decision = limiter.check_request(&request).await.unwrap();
                assert!(!decision.is_degraded());
                told.push((decision.is_allowed(), decision.remaining()));
            }
            assert_eq!(told[..5], [(true, 2); 5], "the answer and four repetitions");
            assert_eq!(told[5..8], [(true, 1), (true, 0), (false, 0)], "each counts");
            assert!(told[8..].iter().all(|&(is_allowed, _)| !is_allowed), "{told:?}");
        });
    }
}

/// A stored answer expires after the configured time, even if it was repeated since.
#[test]
fn a_repeated_answer_expires_on_time() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        let store = builder.remember_ids_for(PATIENT * 60).connect().await.unwrap();
        // The counter lives for hours, so the answer expires first.
        let limiter = SharedLimiter::builder(store).limit("3/day token-bucket").build().unwrap();
        let request = Request::new().with("key", "alice").id("again").unwrap();
        assert!(limiter.check_request(&request).await.unwrap().is_allowed());
        let ends = |name: &str| server.command(&["PEXPIRETIME", name]).int();
        let names = server.command(&["KEYS", "*"]);
        let names: Vec<String> = names.items().iter().map(|name| name.text()).collect();
        let answer = names.iter().min_by_key(|name| ends(name)).unwrap();
        let end = ends(answer);
        for _ in 0..6 {
            let _ = limiter.check_request(&request).await.unwrap();
            assert_eq!(ends(answer), end);
        }
    });
}

/// Several requests may carry the id of one external call. Each of them is counted.
#[test]
fn one_id_for_several_requests_counts_for_each() {
    let policy = |name: &str, domain: &str, limit: &str| {
        Policy::new(name, [limit]).in_domain(domain).per(["key"])
    };
    let policies = PolicySet::new([
        policy("search", "search", "1000/day"),
        policy("other", "other", "1000/day"),
        policy("pay", "pay", "2/day"),
        policy("also", "pay", "9/day"),
    ]);
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await.unwrap();
        let limiter = SharedLimiter::builder(store).policies(policies.unwrap()).build().unwrap();
        let ask = async |id: &str, domain: &str, cost: u64| {
            let request = Request::new().in_domain(domain).with("key", "alice").cost(cost);
            let decision = limiter.check_request(&request.id(id).unwrap()).await.unwrap();
            assert!(!decision.is_degraded(), "{id} {domain} {cost}");
            (decision.is_allowed(), decision.remaining())
        };
        for (id, left) in [("1", (true, 1)), ("2", (true, 0)), ("3", (false, 0))] {
            for _ in 0..2 {
                assert!(ask(id, "search", 1).await.0);
                assert_eq!(ask(id, "pay", 1).await, left, "{id}");
            }
        }
        assert_eq!(
            ask("3", "other", 1).await,
            (true, 999),
            "not the stored answer of another request"
        );
        assert_eq!(ask("3", "other", 5).await, (true, 994), "another cost is another request");
        assert_eq!(ask("3", "other", 1).await, (true, 999));
    });
}

/// Two charges of one request may use one counter under two limits. They are charged one after the other, or neither.
#[test]
fn one_key_under_two_limits_is_charged_for_both_or_neither() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await.unwrap();
        let policy = Policy::new(PolicyName::DEFAULT, [Limit::per_day(3)]).per(["key"]);
        let set = PolicySet::new([policy]).unwrap();
        let memory = Limiter::builder().policies(set.clone()).build().unwrap();
        let limiter = SharedLimiter::new(store, set);
        let charge = |limit| {
            let charge = Charge::new(PolicyName::DEFAULT, KeyRef::new(b"alice"), limit);
            charge.counter(Counter::Policy)
        };
        let [few, many] = [Limit::per_day(3), Limit::per_day(5)].map(charge);
        let allowed = |verdict: &BatchDecision| {
            let each = verdict.each.iter().map(Decision::is_allowed);
            (verdict.decision.is_allowed(), each.collect::<Vec<_>>())
        };
        for (charges, is_allowed, left) in [
            ([few, many], true, 3),
            ([many, few], false, 3),
            ([few, many], true, 1),
            ([many, few], false, 1),
            ([few, many], false, 1),
            ([many, few.cost(0)], false, 1),
        ] {
            let (verdict, expected) = (
                limiter.charges().check_batch(&charges, None).await.unwrap(),
                memory.charges().check_batch(&charges).unwrap(),
            );
            assert_eq!(allowed(&verdict), allowed(&expected), "{charges:?}");
            assert_eq!(verdict.decision.is_allowed(), is_allowed, "{charges:?}");
            assert!(!verdict.decision.is_degraded());
            let after = limiter
                .charges()
                .check_batch(&[many.cost(0)], None)
                .await
                .unwrap()
                .decision
                .remaining();
            assert_eq!(after, left, "{charges:?}");
        }
        let error = limiter.charges().check_batch(&[few, many], Some(b"id")).await.unwrap_err();
        assert!(error.to_string().contains("one key under two limits"), "{error}");
    });
}

/// Permits are shared by processes, and a dropped permit is released in the background.
#[test]
fn a_dropped_permit_is_released() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let limiter =
            |store| SharedLimiter::builder(store).limit("2/hour concurrency").build().unwrap();
        let one = limiter(connect(&server.url()).await.unwrap());
        let other = limiter(connect(&server.url()).await.unwrap());
        let first = one.acquire("alice").await.unwrap().permit.unwrap();
        let second = other.acquire("alice").await.unwrap().permit.unwrap();
        assert!(other.acquire("alice").await.unwrap().permit.is_none());
        assert!(second.renew().await.unwrap());
        first.release().await.unwrap();
        assert!(other.acquire("alice").await.unwrap().permit.is_some(), "and is dropped at once");
        drop(second);
        let back = async {
            while one.peek("alice").await.unwrap().remaining() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENT, back).await.unwrap();
    });
}

#[test]
fn unreachable_servers_are_reported_at_once_or_later() {
    runtime().block_on(async {
        let error = RedisStore::connect("redis://user:hunter2@127.0.0.1:1").await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        assert!(
            error.to_string().starts_with("no connection to redis://127.0.0.1:1: cannot connect"),
            "{error}"
        );
        assert!(!error.to_string().contains("hunter2"), "{error}");

        let builder = RedisStore::builder("redis://127.0.0.1:1").unwrap();
        let store = builder.connect_later();
        assert!(!store.is_connected());
        let limiter = SharedLimiter::builder(store).limit("1/day").build().unwrap();
        let start = tokio::time::Instant::now();
        let answers = [limiter.check("a").await.unwrap(), limiter.check("a").await.unwrap()];
        assert!(start.elapsed() < Duration::from_millis(20), "no wait for the server");
        assert!(answers.iter().all(pacegate::Decision::is_degraded));
        assert_eq!(answers.map(|answer| answer.is_allowed()), [true, false], "counted here");
    });
}

/// The first failed connection is reported with address and cause: by the statistics, and by charges.
#[test]
fn failed_connections_name_address_and_cause() {
    let server = Server::options(Flavor::Redis).password("s3cret").start();
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let encrypted = Server::options(Flavor::Redis).tls(&certificates).start();
    let (address, tls) = (server.address(), format!("127.0.0.1:{}", encrypted.port()));
    let unverified = format!("rediss://{tls}?ca={}", others.ca().display());
    runtime().block_on(async {
        for (url, address, cause) in [
            (format!("redis://:hunter2@{address}"), &*address, "WRONGPASS"),
            (format!("redis://{address}"), &*address, "NOAUTH"),
            (format!("redis+cluster://{address}"), &*address, "NOAUTH"),
            (unverified, &*tls, "certificate"),
            ("redis://127.0.0.1:1".to_owned(), "127.0.0.1:1", "refused"),
            ("redis://host.invalid".to_owned(), "host.invalid:6379", "cannot connect: "),
        ] {
            let store = RedisStore::builder(&url).unwrap().connect_later();
            let charge = Charge::new(PolicyName::DEFAULT, "alice", Limit::per_day(1));
            let named =
                |error: &str| error.contains(&format!("{address}: ")) && error.contains(cause);
            let reported = async {
                while !named(&store.charge(&[charge], None).await.unwrap_err().to_string()) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENT, reported).await.expect(&url);
            let server = store.stats().servers.remove(0);
            assert_eq!(server.address, address);
            let error = server.trouble.unwrap();
            assert!(error.contains(cause) && !error.contains("hunter2"), "{url}: {error}");
        }
    });
}

/// A dropped store leaves no connection.
#[test]
fn a_dropped_store_disconnects() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await.unwrap();
        works(store.clone()).await;
        let clients = || server.info("connected_clients").unwrap();
        let with = clients();
        drop(store);
        let gone = async {
            while clients() == with {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENT, gone).await.unwrap();
    });
}

/// As with a static limiter in several tests, each of which has a runtime.
#[test]
fn a_store_reconnects_on_the_runtime_of_its_caller() {
    let server = Server::start(Flavor::Redis);
    let policy = Policy::new("api", [Limit::per_day(100)]).per([Request::KEY]);
    let jobs = Policy::new("jobs", ["9/day concurrency"]);
    let jobs = jobs.matching("job", Condition::Present).per(["job"]);
    let policies = [policy.failing(Closed), jobs.failing(Closed)];
    let first = runtime();
    let store = first.block_on(connect(&server.url())).unwrap();
    let limiter = SharedLimiter::new(store.clone(), PolicySet::new(policies).unwrap());
    let mut left = 100;
    let mut ask = |runtime: tokio::runtime::Runtime| {
        let checks = ["alice"; 10];
        let decisions = runtime.block_on(limiter.check_many(&checks)).unwrap();
        assert!(decisions.iter().all(|decision| decision.is_allowed() && !decision.is_degraded()));
        left -= 10;
        assert_eq!(decisions.iter().map(Decision::remaining).min(), Some(left));
        let job = Request::new().with("job", "backup");
        let admission = runtime.block_on(limiter.acquire_request(&job)).unwrap();
        assert!(!admission.decision.is_degraded());
        let permit = admission.into_result().unwrap();
        assert_eq!(runtime.block_on(permit.renew()), Ok(true));
        assert_eq!(runtime.block_on(permit.release()), Ok(()));
        drop(runtime);
    };
    ask(first);
    ask(runtime());
    ask(crate::kit::two_threads());
    ask(runtime());
    assert!(!store.is_connected());
    let outside = pollster::block_on(limiter.check("alice")).unwrap();
    assert!(outside.is_degraded(), "without a runtime the store cannot reconnect");
    ask(runtime());
}
