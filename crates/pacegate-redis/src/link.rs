//! One connection to one server.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
    aio::MultiplexedConnection,
};
use rustls::crypto::CryptoProvider;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    environment::{ByteStream, Environment},
    script::Scripts,
    tls::Tls,
};

/// Credentials, database and TLS settings of servers, and the source of connections.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    pub(crate) environment: Arc<dyn Environment>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(std::path::PathBuf),
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Wire,
    /// Receives push messages, among them that the connection closed.
    gone: mpsc::UnboundedReceiver<redis::PushInfo>,
}

/// Sends commands. Clones share the connection, which replies in the order of the commands.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    _driver: Arc<Driver>,
    pub(crate) scripts: Arc<Scripts>,
}

/// The task that reads and writes a connection. Ends when it is dropped.
#[derive(Debug)]
struct Driver(JoinHandle<()>);

/// Long enough for a TLS handshake on a busy machine; short enough to reconnect within two seconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

impl Link {
    /// Connects and detects the version of the server. If `writable`, rejects replicas.
    pub(crate) async fn open(
        address: &Address,
        access: &Access,
        writable: bool,
    ) -> Result<Self, RedisError> {
        let opened = async {
            match Self::open_with(address, access, ProtocolVersion::RESP3).await {
                // The server or a proxy does not support HELLO.
                Err(error) if error.code().is_some() && !is_refused_login(&error) => {
                    Self::open_with(address, access, ProtocolVersion::RESP2).await
                }
                opened => opened,
            }
        };
        let late = |_| {
            RedisError::from((
                redis::ErrorKind::Io,
                "timed out",
                format!("after {CONNECT_TIMEOUT:?}"),
            ))
        };
        let mut link = timeout(CONNECT_TIMEOUT, opened).await.map_err(late)??;
        timeout(CONNECT_TIMEOUT, link.detect(writable)).await.map_err(late)??;
        Ok(link)
    }

    async fn open_with(
        address: &Address,
        access: &Access,
        protocol: ProtocolVersion,
    ) -> Result<Self, RedisError> {
        let (sender, gone) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = match protocol {
            ProtocolVersion::RESP3 => config.set_push_sender(sender),
            _ => config,
        };
        let stream = access.connect(address).await?;
        let info = access.settings(protocol);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = Arc::new(Driver(tokio::spawn(driver)));
        Ok(Self { wire: Wire { connection, _driver: driver, scripts: scripts(true) }, gone })
    }

    async fn detect(&mut self, writable: bool) -> Result<(), RedisError> {
        let info = self.info("server").await?;
        // Valkey reports Redis 7.2 here, for compatibility.
        if field(&info, "redis_version").is_some_and(|version| version.starts_with("6.")) {
            self.wire.scripts = scripts(false);
        }
        if writable && field(&self.info("replication").await?, "role") == Some("slave") {
            return Err((redis::ErrorKind::Client, "the server is a replica").into());
        }
        Ok(())
    }

    async fn info(&mut self, section: &str) -> Result<String, RedisError> {
        match redis::cmd("INFO").arg(section).query_async(&mut self.wire.connection).await {
            // Without permission for INFO, assume a current server.
            Err(error) if error.code() == Some("NOPERM") => Ok(String::new()),
            answer => answer,
        }
    }

    /// Returns the duration of a round trip.
    pub(crate) async fn ping(&mut self) -> Result<Duration, RedisError> {
        let sent = Instant::now();
        let _: Value = redis::cmd("PING").query_async(&mut self.wire.connection).await?;
        Ok(sent.elapsed())
    }

    /// Completes when the connection closes, with RESP3 only.
    pub(crate) async fn gone(&mut self) {
        loop {
            match self.gone.recv().await {
                Some(info) if info.kind != redis::PushKind::Disconnection => {}
                Some(_) => return,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn connection(&mut self) -> &mut MultiplexedConnection {
        &mut self.wire.connection
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }
}

impl Wire {
    /// Sends all commands at once. Error replies are values; `Err` means that the connection broke.
    pub(crate) async fn run(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.connection.clone().send_packed_commands(commands, 0, commands.len()).await
    }
}

impl Access {
    /// Returns credentials, database and protocol.
    fn settings(&self, protocol: ProtocolVersion) -> RedisConnectionInfo {
        let mut redis = RedisConnectionInfo::default().set_protocol(protocol).set_db(self.database);
        // Redis 7.0 has no ACL rule for CLIENT SETINFO, and logs each rejection in its ACL log.
        redis = redis.set_skip_set_lib_name();
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        redis
    }

    async fn connect(&self, address: &Address) -> Result<Box<dyn ByteStream>, RedisError> {
        let (host, port) = match address {
            Address::Tcp(host, port) => (host, *port),
            #[cfg(unix)]
            Address::Unix(path) => {
                return Ok(Box::new(tokio::net::UnixStream::connect(path).await?));
            }
            #[cfg(not(unix))]
            Address::Unix(_) => {
                let problem = "Unix sockets are not supported on this system";
                return Err((redis::ErrorKind::InvalidClientConfig, problem).into());
            }
        };
        let Some(tls) = &self.tls else {
            return Ok(self.environment.connect(host, port).await?);
        };
        if !install_crypto_provider() {
            let hint =
                "TLS needs a crypto provider: enable the feature ring, or install one for rustls";
            return Err((redis::ErrorKind::InvalidClientConfig, hint).into());
        }
        let stream = self.environment.connect(host, port).await?;
        Ok(Box::new(tls.connect(host, stream).await?))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Installs the crypto provider of this crate's features for rustls, unless the program has installed one. Returns
/// `false` if there is none. Connections with TLS call it; programs with other users of rustls may call it first.
pub fn install_crypto_provider() -> bool {
    #[cfg(feature = "aws-lc-rs")]
    use rustls::crypto::aws_lc_rs as provider;
    #[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
    use rustls::crypto::ring as provider;

    #[cfg(any(feature = "ring", feature = "aws-lc-rs"))]
    if CryptoProvider::get_default().is_none() {
        // Fails if another thread has just installed one.
        drop(provider::default_provider().install_default());
    }
    CryptoProvider::get_default().is_some()
}

/// Hides the password.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns whether the login failed. A second attempt would look like guessing a password.
fn is_refused_login(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// Returns the value of a line `name:value` of INFO.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns the scripts. They are created once, because their digests take longer than a charge.
fn scripts(with_header: bool) -> Arc<Scripts> {
    static HEADER: OnceLock<Arc<Scripts>> = OnceLock::new();
    static PLAIN: OnceLock<Arc<Scripts>> = OnceLock::new();
    let scripts = if with_header {
        HEADER.get_or_init(|| Arc::new(Scripts::with_header()))
    } else {
        PLAIN.get_or_init(|| Arc::new(Scripts::plain()))
    };
    scripts.clone()
}
