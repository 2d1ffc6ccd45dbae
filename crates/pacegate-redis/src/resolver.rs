//! Which server a worker leads to.

use std::{collections::HashMap, fmt, time::Duration};

use parking_lot::Mutex;
use redis::RedisError;
use tokio::time::{Instant, timeout};

use crate::link::{Access, Address, Link};

/// How a worker finds its server.
#[derive(Debug)]
pub(crate) enum Resolver {
    /// Always the same.
    Fixed(Address, Access),
    /// Whichever the sentinels call the master.
    Sentinel(Box<Sentinels>),
}

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    pub(crate) access: Access,
    pub(crate) master: String,
    pub(crate) master_access: Access,
    /// Where the master was when last connected to.
    pub(crate) current: Mutex<Option<Address>>,
    /// The latest failover that was heard of.
    pub(crate) latest: Mutex<Option<Failover>>,
}

/// Which of two failovers is later: by the epoch of the last that has ended, and whether the next is under way and has
/// a new master already.
type Turn = (u64, bool);

/// Where a failover has led to.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    turn: Turn,
    address: Address,
    /// When a sentinel last told of it.
    heard: Instant,
}

/// How long a sentinel may take to say where the master is.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

/// For so long a failover is believed against sentinels that have not heard of it. They tell each other every two
/// seconds; what they still do not know then was taken back.
const BELIEVED: Duration = Duration::from_secs(10);

impl Resolver {
    /// Where the server is, if that does not change.
    pub(crate) fn address(&self) -> Option<&Address> {
        match self {
            Self::Fixed(address, _) => Some(address),
            Self::Sentinel(_) => None,
        }
    }

    pub(crate) async fn connect(&self) -> Result<Link, RedisError> {
        match self {
            Self::Fixed(address, access) => Link::open(address, access, true).await,
            Self::Sentinel(sentinels) => {
                let address = sentinels.find().await.ok_or_else(|| {
                    RedisError::from((redis::ErrorKind::Client, "no sentinel knows the master"))
                })?;
                *sentinels.current.lock() = Some(address.clone());
                Link::open(&address, &sentinels.master_access, true).await
            }
        }
    }
}

impl Sentinels {
    /// Where the master is now: of all answers, that of the latest failover. An old master goes on taking writes for
    /// seconds after its sentinels have given it up, so it is they who have to be asked.
    pub(crate) async fn find(&self) -> Option<Address> {
        let mut asked = tokio::task::JoinSet::new();
        for address in &self.addresses {
            let (address, access) = (address.clone(), self.access.clone());
            let master = self.master.clone();
            asked.spawn(async move {
                timeout(SENTINEL_TIMEOUT, ask(&address, &access, &master)).await.ok()?.ok()?
            });
        }
        let answers = asked.join_all().await;
        let (turn, address) = answers.into_iter().flatten().max_by_key(|(turn, _)| *turn)?;
        let heard = Failover { turn, address, heard: Instant::now() };
        Some(later(&mut self.latest.lock(), heard).address.clone())
    }
}

/// The later of what was known and what was heard just now. Whoever knows the latest failover may be slow to answer,
/// and the others would lead back to the old master.
fn later(known: &mut Option<Failover>, heard: Failover) -> &Failover {
    let stands = |known: &Failover| {
        known.turn > heard.turn && heard.heard.duration_since(known.heard) < BELIEVED
    };
    match known.take().filter(stands) {
        Some(kept) => known.insert(kept),
        None => known.insert(heard),
    }
}

/// One sentinel's opinion: which failover it has seen, and the address.
async fn ask(
    sentinel: &Address,
    access: &Access,
    master: &str,
) -> Result<Option<(Turn, Address)>, RedisError> {
    let mut link = Link::open(sentinel, access, false).await?;
    let mut commands = redis::pipe();
    // While replicas are told of a new master, only this command names it already.
    commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    commands.cmd("SENTINEL").arg("MASTER").arg(master);
    let (address, fields): (Option<(String, u16)>, HashMap<String, String>) =
        commands.query_async(link.connection()).await?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(address.map(|(host, port)| {
        let old = (fields.get("ip"), fields.get("port").and_then(|port| port.parse().ok()));
        let is_new = old != (Some(&host), Some(port));
        ((epoch, is_new), Address::Tcp(host, port))
    }))
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address, _) => address.fmt(f),
            Self::Sentinel(sentinels) => match &*sentinels.current.lock() {
                Some(address) => write!(f, "{address}, master `{}`", sentinels.master),
                None => write!(f, "master `{}`", sentinels.master),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failover(turn: Turn, port: u16, heard: Instant) -> Failover {
        Failover { turn, address: Address::Tcp("127.0.0.1".to_owned(), port), heard }
    }

    #[test]
    fn sentinels_that_have_not_heard_do_not_lead_back() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut latest = None;
        let mut led = |turn, port, seconds| {
            later(&mut latest, failover(turn, port, after(seconds))).address.to_string()
        };
        assert_eq!(led((1, false), 1, 0), "127.0.0.1:1");
        assert_eq!(led((1, true), 2, 1), "127.0.0.1:2", "under way, but there is a new master");
        assert_eq!(led((1, false), 1, 2), "127.0.0.1:2", "who knows better did not answer");
        assert_eq!(led((2, false), 2, 9), "127.0.0.1:2");
        assert_eq!(led((1, true), 1, 18), "127.0.0.1:2");
        assert_eq!(led((1, false), 1, 19), "127.0.0.1:1", "nobody knows of it any more");
        assert_eq!(led((2, false), 3, 20), "127.0.0.1:3");
    }
}
