//! Blocks that several processes share.

use std::time::Duration;

use pacegate::{Clock, KeyBuf, KeyRef, Limit, PolicyName, Store, StoreError, Timestamp};
use pacegate_redis::{ACL_RULES, Block, RedisStore};
use pacegate_testkit::{
    Subject,
    servers::{Cluster, Flavor, Server},
};

use crate::kit::{PATIENT, Timed, runtime};

const MINUTE: Duration = Duration::from_secs(60);

fn policy() -> PolicyName {
    "login".parse().unwrap()
}

/// Two clients with one clock.
fn share(url: &str) {
    let [one, other] = [(), ()].map(|()| Timed::new(url, |builder| builder));
    let at = |seconds: u64| {
        let now = Timestamp::from_secs(1_700_000_000 + seconds);
        [&one, &other].iter().for_each(|store| store.set_time(now));
        now
    };
    let start = at(0);
    let read = |known| other.block_on(other.store.blocks(known)).unwrap();
    let none = read(0);
    assert_eq!((none.now, none.version, none.blocks.len()), (start, 0, 0));
    let keys = [KeyBuf::from_key("a"), KeyBuf::from_key(("b", None::<&str>)), KeyBuf::empty()];
    for (place, key) in keys.iter().enumerate() {
        let before = read(0).version;
        let block = one.store.block(policy(), key.as_ref(), MINUTE, 3);
        let added = one.block_on(block).unwrap();
        assert_eq!((added.before, added.changed), (before, 1));
        assert!(added.version > before, "each change has another version");
        assert_eq!(read(added.version).blocks, [], "nothing new");
        assert_eq!(read(0).blocks.len(), place + 1);
    }
    let until = Timestamp::from_secs(1_700_000_060);
    let mut found = read(0).blocks;
    found.sort_by_key(|block| keys.iter().position(|key| *key == block.key));
    let expected = keys.clone().map(|key| Block { policy: policy(), key, until });
    assert_eq!(found, expected);

    // Nothing changes if there are too many, but a known block is prolonged.
    let full = one.block_on(one.store.block(policy(), KeyRef::new(b"c"), MINUTE, 3)).unwrap();
    assert_eq!((full.changed, full.before), (0, full.version));
    at(30);
    let again = one.block_on(one.store.block(policy(), keys[0].as_ref(), MINUTE, 3)).unwrap();
    assert_eq!((again.changed, read(0).blocks.len()), (1, 3));
    // Expired blocks make room.
    at(60);
    let next = one.block_on(one.store.block(policy(), KeyRef::new(b"c"), MINUTE, 3)).unwrap();
    assert_eq!((next.changed, read(again.version).blocks.len()), (1, 2));
    let blocks = read(0).blocks;
    for changed in [2, 0] {
        assert_eq!(one.block_on(one.store.unblock(&blocks)).unwrap().changed, changed);
        assert_eq!(read(0).blocks, []);
    }
    let none = one.block_on(one.store.unblock(&[]));
    assert!(matches!(none, Err(StoreError::Unsupported(_))), "{none:?}");
}

#[test]
fn clients_share_blocks() {
    for flavor in Flavor::ALL {
        let rules = format!("pacegate on >secret ~pg:* {ACL_RULES}");
        let server = Server::options(flavor).acl("default off").acl(&rules).start();
        share(&format!("redis://pacegate:secret@{}", server.address()));
        share(&Cluster::start(flavor, 3, 0).url());
    }
}

#[test]
fn blocks_end_on_the_server_with_the_last_of_them() {
    let server = Server::start(Flavor::Redis);
    let runtime = runtime();
    let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
    let store = runtime.block_on(builder.connect()).unwrap();
    let life = || server.command(&["PTTL", "pg:{blocks}"]).int();
    for (key, seconds, lowest) in [("a", 60, 59_000), ("b", 3_600, 3_599_000), ("c", 1, 3_590_000)]
    {
        let time = Duration::from_secs(seconds);
        let block = store.block(policy(), KeyRef::new(key.as_bytes()), time, 9);
        let added = runtime.block_on(block).unwrap();
        assert!(life() >= lowest && life() <= 3_601_000, "{}", life());
        let here = pacegate::SystemClock::new().now();
        assert!(here.micros_since(added.now) < 60_000_000, "the server's time");
    }
    // The version does not return after the key was lost.
    let before = runtime.block_on(store.blocks(0)).unwrap().version;
    server.command(&["FLUSHALL"]);
    assert_eq!(runtime.block_on(store.blocks(before)).unwrap().version, 0);
    let block = store.block(policy(), KeyRef::new(b"a"), MINUTE, 9);
    assert!(runtime.block_on(block).unwrap().version > before);
}

/// A user with the permissions of a layout cannot use the key of the blocks, but keeps its connection.
#[test]
fn a_missing_permission_fails_only_the_call() {
    let server = Server::options(Flavor::Redis)
        .acl(&format!("pacegate on >secret ~pg:* {ACL_RULES}"))
        .acl(&format!("other on >secret ~rl:* {ACL_RULES}"))
        .start();
    let runtime = runtime();
    let url = format!("redis://other:secret@{}", server.address());
    let builder = RedisStore::builder(&url).unwrap().deadline(PATIENT);
    let store = runtime.block_on(builder.connect()).unwrap();
    let answer = runtime.block_on(store.blocks(0));
    let is_named = |why: &str| why.starts_with("NOPERM");
    assert!(matches!(&answer, Err(StoreError::Unsupported(why)) if is_named(why)), "{answer:?}");
    assert!(store.is_connected());
    // A value of another type is an error, too.
    server.command(&["SET", "pg:{blocks}", "x"]);
    let url = format!("redis://pacegate:secret@{}", server.address());
    let builder = RedisStore::builder(&url).unwrap().deadline(PATIENT);
    let store = runtime.block_on(builder.connect()).unwrap();
    let answer = runtime.block_on(store.blocks(0));
    assert!(matches!(&answer, Err(StoreError::Failed(_))), "{answer:?}");
    let charge = pacegate::Charge::new(policy(), KeyRef::new(b"a"), Limit::per_hour(1));
    assert!(runtime.block_on(store.charge(&[charge], None)).unwrap()[0].is_admitted());
}
