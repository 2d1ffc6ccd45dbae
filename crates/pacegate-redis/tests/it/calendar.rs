//! Calendar periods on a client whose clock is wrong.

use pacegate::{Charge, Counter, KeyRef, Limit, Store, Timestamp, Update};
use pacegate_redis::{Connecting, Environment, OperatingSystem, RedisStore};
use pacegate_testkit::servers::{Flavor, Server};

use crate::kit::{PATIENT, runtime};

/// A host whose clock always shows this time.
#[derive(Debug)]
struct WrongClock(Timestamp, OperatingSystem);

impl Environment for WrongClock {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn random(&self) -> u64 {
        self.1.random()
    }

    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        self.1.connect(host, port)
    }
}

fn charge() -> Charge<'static> {
    let limit: Limit = "5/year in Asia/Tokyo".parse().unwrap();
    Charge::new("calendar".parse().unwrap(), KeyRef::new(b"key"), limit).counter(Counter::Policy)
}

/// Charges one unit, and returns the remaining units and the round trips of the store so far.
async fn remaining(store: &RedisStore) -> (u64, u64) {
    let outcomes = store.charge(&[charge()], None).await.unwrap();
    (outcomes[0].remaining(), store.stats().trips)
}

#[test]
fn a_wrong_window_is_corrected_once() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let builder = || RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        runtime().block_on(async {
            let right = builder().connect().await.unwrap();
            assert_eq!(remaining(&right).await.0, 4);
            // From here on, the server knows the scripts.
            right.update(&charge(), Update::Refund).await.unwrap();
            for now in [Timestamp::EPOCH, Timestamp::MAX] {
                let wrong =
                    || builder().environment(WrongClock(now, OperatingSystem::default())).connect();
                let store = wrong().await.unwrap();
                assert_eq!(remaining(&store).await, (4, 2), "one more round trip");
                assert_eq!(remaining(&store).await, (3, 3), "the next estimate is right");
                let store = wrong().await.unwrap();
                store.update(&charge().cost(2), Update::Refund).await.unwrap();
                assert_eq!(store.stats().trips, 2);
                assert_eq!(remaining(&store).await, (4, 3));
                right.update(&charge(), Update::Reset).await.unwrap();
            }
            assert!(right.charge(&[charge().cost(5)], None).await.unwrap()[0].is_admitted());
            let ttl = server.command(&[
                "EVAL",
                "return redis.call('PTTL', redis.call('KEYS', '*')[1])",
                "0",
            ]);
            assert!((1..=367 * 86_400_000).contains(&ttl.int()), "{ttl:?}");
        });
    }
}
