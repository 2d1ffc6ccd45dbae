//! Compares the model of Redis with real servers.

mod cluster;

use std::{future::Future, sync::Arc};

use pacegate::{ManualClock, Store, Timestamp};
use pacegate_redis::RedisStore;
use pacegate_sim::{
    SimulatedEnvironment,
    clock::{MachineClock, VirtualTime},
    network::{Network, Path, Program, Server as Machine},
    redis::{Redis, Session, Value, resp::Reply},
    trace::Trace,
};
use pacegate_testkit::{
    Random, Subject, conformance,
    servers::{Client, Flavor, Reply as RealReply, Server},
};
use tokio::runtime::Runtime;

const START: u64 = 1_767_225_600_000_000;

/// The store on the model, with a manual clock.
struct OnModel {
    store: RedisStore,
    clock: ManualClock,
    network: Network,
    runtime: Runtime,
}

impl OnModel {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let clock = ManualClock::new();
        let (network, store) = runtime.block_on(async {
            let time = VirtualTime::start();
            let machine = MachineClock::new(time, START, 0);
            let mut redis = Redis::new().unwrap();
            redis.record();
            let server = Machine::new("redis", Program::Redis(redis), machine.clone());
            let (hosts, trace) = ((1, Path::open((0, 0))), Trace::new(time, false));
            let network = Network::new(vec![server], hosts, time, Random::new(1), trace);
            let environment = SimulatedEnvironment::new(
                0,
                network.clone(),
                machine,
                Random::new(2),
                Arc::default(),
            );
            let builder = RedisStore::builder("redis://redis").unwrap();
            let store = builder.environment(environment).clock(clock.clone()).connect().await;
            (network, store.unwrap())
        });
        Self { store, clock, network, runtime }
    }
}

impl Subject for OnModel {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}

/// Asserts that two replies are equal. Only the codes of errors are compared.
fn assert_same(model: &Reply, real: &RealReply, context: &str) {
    let is_same = match (model, real) {
        (Reply::Status(one), RealReply::Simple(other)) => one == other,
        (Reply::Error(one), RealReply::Error(other)) => code(one) == code(other),
        (Reply::Int(one), RealReply::Int(other)) => one == other,
        (Reply::Bulk(one), RealReply::Bulk(other)) => one == other,
        (Reply::Nil, RealReply::Nil) => true,
        (Reply::Array(one), RealReply::Array(other)) => {
            one.iter().zip(other).for_each(|(one, other)| assert_same(one, other, context));
            one.len() == other.len()
        }
        _ => false,
    };
    assert!(is_same, "{context}: the model replied {model:?}, the server {real:?}");
}

fn code(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Asserts that a server has the same keys and values. Times to live may differ by the duration of the test.
fn assert_same_state(redis: &Redis, client: &mut Client, context: &str) {
    let keyspace = redis.snapshot();
    let mut count = 0;
    for (key, value, left) in keyspace.dump() {
        let command: &[&[u8]] = match value {
            Value::String(_) => &[b"GET", key],
            Value::List(_) => &[b"LRANGE", key, b"0", b"-1"],
            Value::SortedSet(_) => &[b"ZRANGE", key, b"0", b"-1"],
        };
        let bulk = |bytes: &Vec<u8>| Reply::Bulk(bytes.clone());
        let expected = match value {
            Value::String(value) => bulk(value),
            Value::List(items) => Reply::Array(items.iter().map(bulk).collect()),
            Value::SortedSet(members) => {
                Reply::Array(members.iter().map(|(_, member)| bulk(member)).collect())
            }
        };
        assert_same(&expected, &client.command(command).unwrap(), context);
        let real = client.command(&[b"PTTL".as_slice(), key]).unwrap().int();
        let left = left.map_or(-1, |left| left as i64);
        assert!(left.abs_diff(real) < 120_000, "{context}: PTTL {left} of the model, {real}");
        count += 1;
    }
    assert_eq!(client.command(&["DBSIZE"]).unwrap().int(), count, "{context}: keys");
}

/// The store's scripts, for the histories of the conformance suite.
#[test]
fn the_model_runs_our_scripts_like_real_servers() {
    let model = OnModel::new();
    conformance(&model, 40);
    let commands = model.network.with_redis(0, Redis::take_recorded);
    assert!(commands.len() > 5_000, "{}", commands.len());
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        for (args, reply) in &commands {
            let name = String::from_utf8_lossy(&args[0]);
            if matches!(&*name, "EVAL" | "EVALSHA" | "UNLINK") {
                let real = client.command(args).unwrap();
                assert_same(reply, &real, &format!("{flavor}: {name}"));
            }
        }
        model.network.with_redis(0, |redis| {
            assert_same_state(redis, &mut client, &flavor.to_string());
        });
    }
}

/// Random commands, half of them from a script.
#[test]
fn the_model_runs_commands_like_real_servers() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        for seed in 0..300 {
            client.command(&["FLUSHALL"]).unwrap();
            let (mut redis, mut session) = (Redis::new().unwrap(), Session::default());
            let mut random = Random::new(seed);
            for step in 0..40 {
                let mut args = random_command(&mut random);
                if random.one_in(2) {
                    let script = "local a = {} for i = 1, #ARGV do a[i] = tonumber(ARGV[i]) or ARGV[i] end \
                                  return redis.pcall(unpack(a))";
                    args.splice(0..0, ["EVAL", script, "0"].map(str::to_owned));
                }
                let words: Vec<Vec<u8>> = args.iter().map(|arg| arg.clone().into_bytes()).collect();
                let reply = redis.execute(&mut session, words.clone(), START);
                let real = client.command(&words).unwrap();
                assert_same(
                    &reply,
                    &real,
                    &format!("{flavor}, seed {seed}, step {step}, {args:?}"),
                );
            }
            assert_same_state(&redis, &mut client, &format!("{flavor}, seed {seed}"));
        }
    }
}

fn random_command(random: &mut Random) -> Vec<String> {
    let key = random.pick(&["a", "b", "c"]);
    let number = random.pick(&["-3", "-2", "-1", "0", "1", "2", "3", "7", "9007199254740991"]);
    let other = random.pick(&["-2", "-1", "0", "1", "4"]);
    let score = random.pick(&["1", "2", "1767225600000000", "(1", "(2", "-inf", "+inf", "x"]);
    let value = random.pick(&["v", "w", "5", "-8", "12x", ""]);
    let template = random.pick(&[
        "GET k",
        "MGET k a",
        "EXISTS k b",
        "DEL k",
        "UNLINK k c",
        "TYPE k",
        "SET k v",
        "SET k v PX 90000000",
        "SET k v KEEPTTL",
        "SET k v PX 0",
        "SET k v BAD",
        "INCRBY k n",
        "DECRBY k n",
        "PEXPIRE k 80000000",
        "PEXPIRE k -1",
        "LPUSH k v",
        "LPUSH k v w",
        "RPUSH k v",
        "RPUSH k v w",
        "RPOP k",
        "LLEN k",
        // Not `n`: Valkey 8.0 uses only 32 bits of a place in a list.
        "LINDEX k o",
        "LSET k o v",
        "LTRIM k n o",
        "LRANGE k n o",
        "ZADD k n v",
        "ZADD k NX n v",
        "ZADD k s v 3 w",
        "ZREM k v w",
        "ZCARD k",
        "ZSCORE k v",
        "ZCOUNT k s +inf",
        "ZRANGEBYSCORE k s +inf",
        "ZRANGEBYSCORE k -inf s",
        "ZREMRANGEBYSCORE k -inf s",
        "ZRANGE k n o",
        "ZRANGE k n o WITHSCORES",
        "ZPOPMAX k 1",
        "ZPOPMAX k 2",
    ]);
    let word = |word: &str| match word {
        "k" => key.to_owned(),
        "n" => number.to_owned(),
        "o" => other.to_owned(),
        "s" => score.to_owned(),
        "v" => value.to_owned(),
        word => word.to_owned(),
    };
    template.split(' ').map(word).collect()
}
