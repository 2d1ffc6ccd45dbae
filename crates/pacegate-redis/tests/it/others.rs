//! Other limiters, each in the few lines that its description asks for and none of ours.
//!
//! Where they would read the clock of their machine they read that of the server, which is the same machine here.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use pacegate::{Algorithm, Limit};
use pacegate_redis::Layout;
use pacegate_testkit::servers::{Client, Cluster, Reply, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Other {
    Rlaas,
    RlaasLog,
    Spring,
    ValkeyApi,
    UnixTime,
    UnixTimeLog,
    TypeScript,
}

/// What it is about: a key, the requests allowed in a window, and the seconds of that.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) key: String,
    pub(crate) amount: u64,
    pub(crate) seconds: u64,
}

impl Other {
    pub(crate) const ALL: [Self; 7] = [
        Self::Rlaas,
        Self::RlaasLog,
        Self::Spring,
        Self::ValkeyApi,
        Self::UnixTime,
        Self::UnixTimeLog,
        Self::TypeScript,
    ];

    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Rlaas => Layout::rlaas(),
            Self::RlaasLog => Layout::rlaas_log(),
            Self::Spring => Layout::spring(Layout::SPRING_PREFIX),
            Self::ValkeyApi => Layout::valkey_api(),
            Self::UnixTime => Layout::unix_time(),
            Self::UnixTimeLog => Layout::unix_time_log(),
            Self::TypeScript => Layout::typescript(),
        }
    }

    /// Microseconds in a tick of its scores, if it keeps a log.
    pub(crate) fn tick(self) -> Option<u64> {
        match self {
            Self::RlaasLog => Some(1_000),
            Self::UnixTimeLog => Some(1_000_000),
            _ => None,
        }
    }

    pub(crate) fn is_log(self) -> bool {
        self.tick().is_some()
    }

    pub(crate) fn limit(self, budget: &Budget) -> Limit {
        let period = std::time::Duration::from_secs(budget.seconds);
        let algorithm = if self.is_log() { Algorithm::SlidingLog } else { Algorithm::FixedWindow };
        Limit::new(budget.amount, period).unwrap().with_algorithm(algorithm).unwrap()
    }

    /// The key at a time, as its description spells it.
    pub(crate) fn name(self, budget: &Budget, micros: u64) -> String {
        let Budget { key, seconds, .. } = budget;
        let window = micros / 1_000_000 / seconds;
        match self {
            Self::Rlaas => format!("rlaas:rate_limit:{key}:{window}"),
            Self::RlaasLog => format!("rlaas:rate_limit:{key}"),
            Self::Spring => {
                let millis = micros / 1_000;
                format!("ratelimiter:{key}:{}", millis - millis % (seconds * 1_000))
            }
            Self::ValkeyApi => format!("rate_limit:{key}:{window}"),
            Self::UnixTime => format!("rl:{key}:{window}"),
            Self::UnixTimeLog => format!("sw:{key}"),
            Self::TypeScript => format!("{window}:{key}"),
        }
    }

    /// Its keys, for a rule about rights.
    pub(crate) fn keys(self) -> &'static str {
        match self {
            Self::Rlaas | Self::RlaasLog => "~rlaas:rate_limit:*",
            Self::Spring => "~ratelimiter:*",
            Self::ValkeyApi => "~rate_limit:*",
            Self::UnixTime => "~rl:*",
            Self::UnixTimeLog => "~sw:*",
            Self::TypeScript => "~[0-9]*:*",
        }
    }

    /// How many seconds a key lives from when that is set.
    pub(crate) fn life(self, seconds: u64) -> u64 {
        match self {
            Self::Rlaas | Self::RlaasLog | Self::TypeScript => seconds,
            Self::Spring | Self::UnixTime => seconds + 1,
            Self::ValkeyApi => seconds + 10,
            Self::UnixTimeLog => 2 * seconds,
        }
    }

    /// Whether an admitted request starts that life anew.
    pub(crate) fn refreshes(self) -> bool {
        matches!(self, Self::ValkeyApi | Self::RlaasLog | Self::UnixTimeLog)
    }

    /// Whether it admits one request.
    pub(crate) fn check(self, client: &mut Client, budget: &Budget) -> bool {
        let now = micros(client);
        let (name, life) = (self.name(budget, now), self.life(budget.seconds).to_string());
        let admitted = |count: i64| count <= budget.amount as i64;
        match self {
            Self::Rlaas => {
                let (seconds, base) = (budget.seconds.to_string(), &budget.key);
                let base = format!("rlaas:rate_limit:{base}");
                let count = must(client, &["EVAL", RLAAS, "1", &base, &seconds]);
                admitted(count.int())
            }
            Self::Spring | Self::UnixTime => {
                let count = must(client, &["INCR", &name]).int();
                if count == 1 {
                    must(client, &["EXPIRE", &name, &life]);
                }
                admitted(count)
            }
            Self::ValkeyApi => {
                let count = must(client, &["INCR", &name]).int();
                must(client, &["EXPIRE", &name, &life]);
                admitted(count)
            }
            Self::TypeScript => {
                must(client, &["MULTI"]);
                must(client, &["INCR", &name]);
                must(client, &["EXPIRE", &name, &life, "NX"]);
                admitted(must(client, &["EXEC"]).items()[0].int())
            }
            Self::RlaasLog => {
                log(client, &name, budget, [now / 1_000, budget.seconds * 1_000], &life)
            }
            Self::UnixTimeLog => {
                log(client, &name, budget, [now / 1_000_000, budget.seconds], &life)
            }
        }
    }
}

/// Servers as the other limiter and the test see them.
pub(crate) enum Servers<'a> {
    One(Client),
    /// With the place of each slot that was asked for.
    Cluster(&'a Cluster, Vec<Client>, BTreeMap<u16, usize>),
}

impl<'a> Servers<'a> {
    pub(crate) fn one(server: &Server) -> Self {
        Self::One(server.connect().unwrap())
    }

    pub(crate) fn cluster(cluster: &'a Cluster) -> Self {
        let clients = cluster.nodes().iter().map(|node| node.connect().unwrap()).collect();
        Self::Cluster(cluster, clients, BTreeMap::new())
    }

    /// A connection to the one that has a key.
    pub(crate) fn of(&mut self, name: &str) -> &mut Client {
        match self {
            Self::One(client) => client,
            Self::Cluster(cluster, clients, places) => {
                let slot = Cluster::slot_of(name.as_bytes());
                &mut clients[*places.entry(slot).or_insert_with(|| cluster.owner(slot))]
            }
        }
    }

    pub(crate) fn micros(&mut self) -> u64 {
        micros(self.of(""))
    }

    pub(crate) fn check(&mut self, other: Other, budget: &Budget) -> bool {
        let name = other.name(budget, self.micros());
        other.check(self.of(&name), budget)
    }
}

/// One call that finds the window by the server's clock, counts, and lets the first request set the life.
const RLAAS: &str = "
    local bucket = math.floor(redis.call('TIME')[1] / ARGV[1])
    local name = KEYS[1] .. ':' .. bucket
    local count = redis.call('INCR', name)
    if count == 1 then redis.call('EXPIRE', name, ARGV[1]) end
    return count";

/// Drops what has left, counts the rest, and adds the request if there is room.
fn log(
    client: &mut Client,
    name: &str,
    budget: &Budget,
    [now, width]: [u64; 2],
    life: &str,
) -> bool {
    let (past, now) = ((now - width).to_string(), now.to_string());
    must(client, &["ZREMRANGEBYSCORE", name, "0", &past]);
    if must(client, &["ZCARD", name]).int() >= budget.amount as i64 {
        return false;
    }
    // A random identifier in the original; here what no other entry is called.
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let member = format!("theirs-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
    must(client, &["ZADD", name, &now, &member]);
    must(client, &["EXPIRE", name, life]);
    true
}

/// The server's time.
pub(crate) fn micros(client: &mut Client) -> u64 {
    let time = must(client, &["TIME"]);
    let [seconds, micros] = [0, 1].map(|place| time.items()[place].int() as u64);
    seconds * 1_000_000 + micros
}

/// The answer to a command that must not be refused.
pub(crate) fn must(client: &mut Client, words: &[&str]) -> Reply {
    let reply = client.command(words).unwrap();
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
    reply
}
