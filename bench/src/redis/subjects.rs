//! The three approaches to compare.

use std::{sync::Arc, time::Duration};

use pacegate::{Limit, Policy, PolicyName, PolicySet, Request, SharedLimiter, policy::Lease};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::Server;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, Script, aio::MultiplexedConnection,
};

pub const NAMES: [&str; 3] = ["pacegate", "(a) script per request", "(b) INCR + EXPIRE"];

#[derive(Clone)]
pub enum Subject {
    Pacegate(SharedLimiter),
    /// Each decision is a reservation and its settlement.
    Reserving(SharedLimiter),
    Script(MultiplexedConnection, Arc<Script>, u32),
    Commands(MultiplexedConnection, u32),
}

/// A script per request: an aligned window by the server's clock that returns everything its caller needs:
/// the decision, the remaining units and the reset time.
const SCRIPT: &str = "
local time = redis.call('TIME')
local key = KEYS[1] .. ':' .. math.floor(time[1] / 3600)
local count = redis.call('INCR', key)
if count == 1 then redis.call('EXPIRE', key, 3600) end
local left = redis.call('TTL', key)
return { count <= tonumber(ARGV[1]) and 1 or 0, count, left }
";

/// Creates a subject. `lease` is the share of the limit that Pacegate may lease, in percent.
pub async fn make(name: &str, server: &Server, limit: u32, lease: u8) -> Subject {
    if name == NAMES[0] {
        // A long deadline: a late response counts with its latency and does not trigger a failure mode.
        let builder = RedisStore::builder(&server.url()).expect("valid address");
        let store = builder
            .deadline(Duration::from_secs(10))
            .connect()
            .await
            .expect("connect to the server");
        let policy = Policy::new(PolicyName::DEFAULT, [Limit::per_hour(limit)]);
        let policy = policy.per([Request::KEY]);
        let policy = if lease > 0 { policy.leased(Lease::Percent(lease)) } else { policy };
        let policies = PolicySet::new([policy]).expect("valid policy");
        return Subject::Pacegate(SharedLimiter::new(store, policies));
    }
    let connection = connect(server).await;
    if name == NAMES[1] {
        Subject::Script(connection, Arc::new(Script::new(SCRIPT)), limit)
    } else {
        Subject::Commands(connection, limit)
    }
}

/// Creates a subject that checks, and one that reserves and settles, on the same limit.
pub async fn reserving(server: &Server, limit: Limit) -> [Subject; 2] {
    let builder = RedisStore::builder(&server.url()).expect("valid address");
    let builder = builder.deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("connect to the server");
    let policy = Policy::new(PolicyName::DEFAULT, [limit]).per([Request::KEY]);
    let limiter = SharedLimiter::new(store, PolicySet::new([policy]).expect("valid policy"));
    [Subject::Pacegate(limiter.clone()), Subject::Reserving(limiter)]
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = server.url().into_connection_info().expect("valid address").set_tcp_settings(tcp);
    let client = Client::open(info).expect("valid address");
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("connect to the server")
}

impl Subject {
    /// Returns true if the key is allowed.
    pub async fn check(&self, key: &str) -> bool {
        match self {
            Self::Pacegate(limiter) => limiter.check(key).await.expect("a decision").is_allowed(),
            Self::Reserving(limiter) => {
                let reserved = limiter.reserve(key, 2, Duration::from_secs(60)).await;
                let reservation =
                    reserved.expect("a decision").into_result().expect("plenty of units");
                reservation.settle(1).await.expect("an answer")
            }
            Self::Script(connection, script, limit) => {
                let mut connection = connection.clone();
                let (allowed, _, _): (bool, u32, u32) = script
                    .key(key)
                    .arg(*limit)
                    .invoke_async(&mut connection)
                    .await
                    .expect("an answer");
                allowed
            }
            Self::Commands(connection, limit) => {
                let mut connection = connection.clone();
                let mut commands = redis::pipe();
                let key = format!("{key}:now");
                commands.incr(&key, 1).expire(&key, 3_610).ignore();
                let (count,): (u32,) =
                    commands.query_async(&mut connection).await.expect("a count");
                count <= *limit
            }
        }
    }
}
