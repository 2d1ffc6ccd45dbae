//! The address of a worker's server.

use std::{collections::HashMap, fmt, time::Duration};

use parking_lot::Mutex;
use redis::RedisError;
use tokio::time::{Instant, timeout};

use crate::link::{Access, Address, Link};

/// Finds the server of a worker.
#[derive(Debug)]
pub(crate) enum Resolver {
    /// A fixed address.
    Fixed(Address, Access),
    /// The master that the sentinels name.
    Sentinel(Box<Sentinels>),
}

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    pub(crate) access: Access,
    pub(crate) master: String,
    pub(crate) master_access: Access,
    /// The address of the last connection to the master.
    pub(crate) current: Mutex<Option<Address>>,
    /// The latest known failover.
    pub(crate) latest: Mutex<Option<Failover>>,
}

/// Orders failovers: the epoch of the last completed one, and whether the next is in progress and has a new master.
type Epoch = (u64, bool);

/// A failover and its new master.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    epoch: Epoch,
    address: Address,
    /// The time of the last report by a sentinel.
    reported_at: Instant,
}

/// Timeout of a query to a sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

/// Time for which a known failover overrides sentinels that do not report it. Sentinels exchange their state every two
/// seconds; a failover that is unknown after this time was reverted.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);

impl Resolver {
    /// Returns the address, if it is fixed.
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
    /// Returns the master according to the latest failover that the sentinels report. An old master accepts writes for
    /// seconds after a failover, so asking the servers themselves would not do.
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
        let (epoch, address) = answers.into_iter().flatten().max_by_key(|(epoch, _)| *epoch)?;
        let reported = Failover { epoch, address, reported_at: Instant::now() };
        Some(later(&mut self.latest.lock(), reported).address.clone())
    }
}

/// Returns the later of the known and the reported failover. The sentinel that knows the latest one may be slow, and
/// the others would lead back to the old master.
fn later(known: &mut Option<Failover>, reported: Failover) -> &Failover {
    let stands = |known: &Failover| {
        known.epoch > reported.epoch
            && reported.reported_at.duration_since(known.reported_at) < FAILOVER_TIMEOUT
    };
    match known.take().filter(stands) {
        Some(kept) => known.insert(kept),
        None => known.insert(reported),
    }
}

/// Returns the latest failover and the master according to one sentinel.
async fn ask(
    sentinel: &Address,
    access: &Access,
    master: &str,
) -> Result<Option<(Epoch, Address)>, RedisError> {
    let mut link = Link::open(sentinel, access, false).await?;
    let mut commands = redis::pipe();
    // During a failover, only this command returns the new master.
    commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    commands.cmd("SENTINEL").arg("MASTER").arg(master);
    let (address, fields): (Option<(String, u16)>, HashMap<String, String>) =
        commands.query_async(link.connection()).await?;
    let completed = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(address.map(|(host, port)| {
        let old = (fields.get("ip"), fields.get("port").and_then(|port| port.parse().ok()));
        let is_new = old != (Some(&host), Some(port));
        ((completed, is_new), Address::Tcp(host, port))
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

    fn failover(epoch: Epoch, port: u16, reported_at: Instant) -> Failover {
        Failover { epoch, address: Address::Tcp("127.0.0.1".to_owned(), port), reported_at }
    }

    #[test]
    fn outdated_sentinels_do_not_lead_back_to_the_old_master() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut latest = None;
        let mut led = |epoch, port, seconds| {
            later(&mut latest, failover(epoch, port, after(seconds))).address.to_string()
        };
        assert_eq!(led((1, false), 1, 0), "127.0.0.1:1");
        assert_eq!(led((1, true), 2, 1), "127.0.0.1:2", "in progress, with a new master");
        assert_eq!(
            led((1, false), 1, 2),
            "127.0.0.1:2",
            "the sentinel that knows better did not answer"
        );
        assert_eq!(led((2, false), 2, 9), "127.0.0.1:2");
        assert_eq!(led((1, true), 1, 18), "127.0.0.1:2");
        assert_eq!(led((1, false), 1, 19), "127.0.0.1:1", "no sentinel reports it any more");
        assert_eq!(led((2, false), 3, 20), "127.0.0.1:3");
    }
}
