//! Which server a lane leads to.

use std::{collections::HashMap, fmt, time::Duration};

use parking_lot::Mutex;
use redis::RedisError;
use tokio::time::timeout;

use crate::link::{Access, Address, Link};

/// How a lane finds its server.
#[derive(Debug)]
pub(crate) enum Resolver {
    /// Always the same.
    Fixed(Address, Access),
    /// Whichever the sentinels call the master.
    Sentinel(Sentinels),
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
}

/// How long a sentinel may take to say where the master is.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

impl Resolver {
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
        let latest = answers.into_iter().flatten().max_by_key(|(epoch, _)| *epoch);
        latest.map(|(_, address)| address)
    }
}

/// One sentinel's opinion: the epoch of the failover, and the address.
async fn ask(
    sentinel: &Address,
    access: &Access,
    master: &str,
) -> Result<Option<(u64, Address)>, RedisError> {
    let mut link = Link::open(sentinel, access, false).await?;
    let mut commands = redis::pipe();
    // While replicas are told of a new master, only this command names it already.
    commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    commands.cmd("SENTINEL").arg("MASTER").arg(master);
    let (address, fields): (Option<(String, u16)>, HashMap<String, String>) =
        commands.query_async(link.connection()).await?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(address.map(|(host, port)| (epoch, Address::Tcp(host, port))))
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
