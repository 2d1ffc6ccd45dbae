//! One connection to one server.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, Pipeline, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates, Value, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};
use rustls::crypto::CryptoProvider;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::script::Scripts;

/// How to reach servers: everything but the address.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
}

/// What a verified connection goes by. Nothing here can turn verification off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Who may vouch for the server, instead of the system's list.
    pub(crate) roots: Option<Vec<u8>>,
    /// What we show it: certificate and key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(std::path::PathBuf),
}

/// A connection, with what is known of the server behind it.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Wire,
    /// Whatever comes here, the connection is gone.
    gone: mpsc::UnboundedReceiver<redis::PushInfo>,
}

/// What commands are sent by. Clones share the connection, which answers in the order of what was sent.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    pub(crate) scripts: Arc<Scripts>,
}

/// Long enough for a handshake with TLS on a busy machine; short enough to be back within two seconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// How long the kernel tries to send a command: for as long as an answer is waited for.
#[cfg(target_os = "linux")]
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

impl Link {
    /// Connects and asks the server what it is. Only a server that takes writes will do, if `writable`.
    pub(crate) async fn open(
        address: &Address,
        access: &Access,
        writable: bool,
    ) -> Result<Self, RedisError> {
        let opened = async {
            match Self::open_with(address, access, ProtocolVersion::RESP3).await {
                // Servers and proxies that do not know, or do not allow, HELLO.
                Err(error) if error.code().is_some() && !is_refused_login(&error) => {
                    Self::open_with(address, access, ProtocolVersion::RESP2).await
                }
                opened => opened,
            }
        };
        let late = |_| RedisError::from((redis::ErrorKind::Io, "no connection in time"));
        let mut link = timeout(CONNECT_TIMEOUT, opened).await.map_err(late)??;
        timeout(CONNECT_TIMEOUT, link.get_to_know(writable)).await.map_err(late)??;
        Ok(link)
    }

    async fn open_with(
        address: &Address,
        access: &Access,
        protocol: ProtocolVersion,
    ) -> Result<Self, RedisError> {
        let (sender, gone) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let config = match protocol {
            ProtocolVersion::RESP3 => config.set_push_sender(sender),
            _ => config,
        };
        let client = access.client(address, protocol)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { wire: Wire { connection, scripts: scripts(true) }, gone })
    }

    async fn get_to_know(&mut self, writable: bool) -> Result<(), RedisError> {
        let info = self.info("server").await?;
        // Valkey tells clients that it is Redis 7.2, and has its own version beside that.
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
            // A user without the right to INFO: take it for a current server.
            Err(error) if error.code() == Some("NOPERM") => Ok(String::new()),
            answer => answer,
        }
    }

    /// How long the server takes to answer.
    pub(crate) async fn ping(&mut self) -> Result<Duration, RedisError> {
        let sent = Instant::now();
        let _: Value = redis::cmd("PING").query_async(&mut self.wire.connection).await?;
        Ok(sent.elapsed())
    }

    /// Completes when the connection is gone, if the server speaks RESP3.
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
    /// Sends all commands at once. A reply may be an error; `Err` means that the connection broke.
    pub(crate) async fn run(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.connection.clone().send_packed_commands(commands, 0, commands.len()).await
    }
}

impl Access {
    fn client(&self, address: &Address, protocol: ProtocolVersion) -> Result<Client, RedisError> {
        let mut redis = RedisConnectionInfo::default().set_protocol(protocol).set_db(self.database);
        // Redis 7.0 cannot even name the right to CLIENT SETINFO, and every refusal is a line in the server's ACL log.
        redis = redis.set_skip_set_lib_name();
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        let info = self.address(address).into_connection_info()?;
        let info = info.set_redis_settings(redis);
        let tcp = TcpSettings::default().set_nodelay(true);
        // A command that the network has delayed must not run after its connection was given up: its permit has been
        // returned by then, over the next connection.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(SEND_TIMEOUT);
        let info = info.set_tcp_settings(tcp);
        match &self.tls {
            None => Client::open(info),
            Some(tls) => {
                ensure_provider()?;
                Client::build_with_tls(info, tls.certificates())
            }
        }
    }

    fn address(&self, address: &Address) -> ConnectionAddr {
        match (address.clone(), &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path),
            (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host, port),
            (Address::Tcp(host, port), Some(_)) => {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            }
        }
    }
}

impl Tls {
    fn certificates(&self) -> TlsCertificates {
        let identity = self.identity.clone();
        TlsCertificates {
            client_tls: identity.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: self.roots.clone(),
        }
    }
}

/// What does the arithmetic of TLS is the program's choice; if it has made none, ours is taken.
fn ensure_provider() -> Result<(), RedisError> {
    #[cfg(feature = "aws-lc-rs")]
    if CryptoProvider::get_default().is_none() {
        // Somebody else may have been quicker, which is as good.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
    match CryptoProvider::get_default() {
        Some(_) => Ok(()),
        None => Err((
            redis::ErrorKind::InvalidClientConfig,
            "TLS needs a provider: enable the feature aws-lc-rs, or install one of rustls",
        )
            .into()),
    }
}

/// Without what is secret.
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

/// Asking again would only look like guessing.
fn is_refused_login(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// A line `name:value` of INFO.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Made once: the digests of the scripts take longer than a charge.
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
