//! Addresses of servers, as URLs.

use std::{fmt, fs, path::PathBuf, str::FromStr, sync::Arc};

use percent_encoding::percent_decode_str;

use crate::{
    environment::{Environment, OperatingSystem},
    link::{Access, Address},
    tls::Tls,
};

/// The address of one or several servers, with credentials and TLS settings.
///
/// | address | servers |
/// |---|---|
/// | `redis://user:password@host:6379/0` | one |
/// | `redis+unix:///run/redis.sock?db=0` | one, over a Unix socket |
/// | `redis+cluster://a:7000,b:7000,c:7000` | a cluster; other nodes are discovered |
/// | `redis+sentinel://a:26379,b:26379/mymaster/0` | the master that the sentinels name |
///
/// `rediss` instead of `redis` uses TLS and verifies the server; `valkey` and `valkeys` are aliases. With TLS,
/// `?ca=FILE` sets the CA certificates and `?cert=FILE&key=FILE` the client certificate. `?sentinel_user=…` and
/// `?sentinel_password=…` are the credentials for the sentinels. In users and passwords, percent-encode everything
/// except letters, digits and `-._~`.
///
/// ```
/// use pacegate_redis::RedisUrl;
///
/// let url: RedisUrl = "rediss://app:s%2Fcret@cache.example.com:6380/0".parse()?;
/// assert!(!url.to_string().contains("s%2Fcret"), "credentials are not printed");
/// let error = "cache.example.com:6379".parse::<RedisUrl>().unwrap_err();
/// assert!(error.to_string().starts_with("expected an address that begins with redis://"));
/// # Ok::<(), pacegate_redis::UrlError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisUrl {
    pub(crate) servers: Servers,
    pub(crate) access: Access,
}

#[derive(Clone, Debug)]
pub(crate) enum Servers {
    One(Address),
    Cluster(Vec<Address>),
    Sentinel { addresses: Vec<Address>, access: Access, master: String },
}

impl RedisUrl {
    /// Replaces the environment of all connections.
    pub(crate) fn set_environment(&mut self, environment: &Arc<dyn Environment>) {
        self.access.environment = environment.clone();
        if let Servers::Sentinel { access, .. } = &mut self.servers {
            access.environment = environment.clone();
        }
    }
}

/// An error in an address. The message never contains passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; example: {example}")]
pub struct UrlError {
    problem: String,
    example: &'static str,
}

const ONE: &str = "redis://user:password@127.0.0.1:6379/0";
const SENTINEL: &str = "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster";
const CLUSTER: &str = "redis+cluster://10.0.0.1:6379,10.0.0.2:6379";
const UNIX: &str = "redis+unix:///run/redis.sock?db=0";

// A misplaced part may be a password, so no message repeats any of the address.
const BEGINS: &str = "expected an address that begins with redis://";
const STRAY: &str =
    "invalid address: before the @, write / as %2F and ? as %3F; after it, write @ as %40";
const ESCAPES: &str =
    "invalid percent-encoding: expected two hexadecimal digits after %; write % itself as %25";
const NOT_UTF_8: &str = "invalid percent-encoding: not UTF-8";
const NO_OPTION: &str = "unknown option: expected db, ca, cert or key; for sentinels also sentinel_user or \
                         sentinel_password";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    Unix,
    Cluster,
    Sentinel,
}

/// The parts of an address.
struct Parts<'a> {
    shape: Shape,
    tls: bool,
    login: Option<&'a str>,
    hosts: &'a str,
    path: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let mut parts = Parts::split(text)?;
        let (user, password) = parts.login()?;
        let tls = parts.tls()?;
        let (sentinel_user, sentinel_password) = match parts.shape {
            Shape::Sentinel => (parts.take("sentinel_user"), parts.take("sentinel_password")),
            Shape::One | Shape::Unix | Shape::Cluster => (None, None),
        };
        let database = parts.database()?;
        let environment: Arc<dyn Environment> = Arc::new(OperatingSystem);
        let access =
            Access { user, password, database, tls: tls.clone(), environment: environment.clone() };
        let servers = match parts.shape {
            Shape::Unix => Servers::One(Address::Unix(parts.socket()?)),
            Shape::One => Servers::One(parts.one_host()?),
            Shape::Cluster => Servers::Cluster(parts.hosts(6379)?),
            Shape::Sentinel => Servers::Sentinel {
                addresses: parts.hosts(26379)?,
                access: Access {
                    user: sentinel_user,
                    password: sentinel_password,
                    database: 0,
                    tls,
                    environment,
                },
                master: parts.master()?,
            },
        };
        match parts.query.first() {
            None => Ok(Self { servers, access }),
            Some(_) => Err(parts.error(NO_OPTION)),
        }
    }
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, UrlError> {
        let begins = || UrlError { problem: BEGINS.to_owned(), example: ONE };
        let (scheme, rest) = text.split_once("://").ok_or_else(begins)?;
        let (shape, tls) = scheme_of(scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        let stray = |part: &str| part.contains('@');
        let sentinel = |pair: &str| {
            let name = pair.split_once('=').map_or(pair, |(name, _)| name);
            matches!(name, "sentinel_user" | "sentinel_password")
        };
        if (shape != Shape::Unix && stray(path))
            || query.split('&').any(|pair| stray(pair) && !sentinel(pair))
        {
            return Err(UrlError { problem: STRAY.to_owned(), example: ONE });
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let path = path.split('/').filter(|part| !part.is_empty()).collect();
        let query = query.split('&').filter(|pair| !pair.is_empty());
        let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut parts = Self { shape, tls, login, hosts, path, query: Vec::new() };
        for (name, value) in query {
            parts.query.push((name, parts.decode(value)?));
        }
        Ok(parts)
    }

    fn error(&self, problem: impl Into<String>) -> UrlError {
        let example = match self.shape {
            Shape::One => ONE,
            Shape::Unix => UNIX,
            Shape::Cluster => CLUSTER,
            Shape::Sentinel => SENTINEL,
        };
        UrlError { problem: problem.into(), example }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.query.iter().position(|(other, _)| *other == name)?;
        Some(self.query.remove(place).1)
    }

    fn login(&self) -> Result<(Option<String>, Option<String>), UrlError> {
        let Some(login) = self.login else { return Ok((None, None)) };
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        let user = if user.is_empty() { None } else { Some(self.decode(user)?) };
        Ok((user, password.map(|password| self.decode(password)).transpose()?))
    }

    /// Decodes percent-encoding.
    fn decode(&self, text: &str) -> Result<String, UrlError> {
        let is_escape = |after: &str| {
            let digits = after.as_bytes().get(..2);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        if !text.split('%').skip(1).all(is_escape) {
            return Err(self.error(ESCAPES));
        }
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| self.error(NOT_UTF_8))
    }

    fn tls(&mut self) -> Result<Option<Tls>, UrlError> {
        let files = ["ca", "cert", "key"].map(|name| self.take(name));
        if !self.tls {
            return match files.iter().flatten().next() {
                Some(_) => Err(self.error("certificates need TLS: use rediss instead of redis")),
                None => Ok(None),
            };
        }
        let read = |file: &String| {
            let problem = |error| self.error(format!("cannot read {file}: {error}"));
            fs::read(file).map_err(problem)
        };
        let [roots, cert, key] = files;
        let roots = roots.as_ref().map(read).transpose()?;
        let identity = match (&cert, &key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            (None, None) => None,
            _ => return Err(self.error("expected both `cert` and `key`, or neither")),
        };
        Ok(Some(Tls { roots, identity }))
    }

    /// Returns the database: `db=`, or the last part of the path.
    fn database(&mut self) -> Result<i64, UrlError> {
        let named = self.take("db");
        let place = if self.shape == Shape::Sentinel { 1 } else { 0 };
        let text = match (&named, self.shape) {
            (Some(text), _) => text.as_str(),
            (None, Shape::Unix) => "0",
            (None, _) => self.path.get(place).copied().unwrap_or("0"),
        };
        let database: i64 = text
            .parse()
            .ok()
            .filter(|number| *number >= 0)
            .ok_or_else(|| self.error("invalid database: expected a number, such as 0"))?;
        if self.shape != Shape::Unix && self.path.len() > place + 1 {
            return Err(self.error("unexpected text after the database number"));
        }
        if self.shape == Shape::Cluster && database != 0 {
            return Err(self.error("a cluster has only database 0"));
        }
        Ok(database)
    }

    fn socket(&self) -> Result<PathBuf, UrlError> {
        if self.path.is_empty() || !self.hosts.is_empty() {
            return Err(self.error("expected the path of the socket after three slashes"));
        }
        Ok(PathBuf::from(self.decode(&format!("/{}", self.path.join("/")))?))
    }

    fn master(&self) -> Result<String, UrlError> {
        match self.path.first() {
            Some(name) => self.decode(name),
            None => Err(self.error("missing name of the master")),
        }
    }

    fn one_host(&self) -> Result<Address, UrlError> {
        let mut hosts = self.hosts(6379)?;
        match (hosts.pop(), hosts.is_empty()) {
            (Some(address), true) => Ok(address),
            _ => Err(UrlError {
                problem: "several servers need redis+cluster:// or redis+sentinel://".to_owned(),
                example: CLUSTER,
            }),
        }
    }

    fn hosts(&self, default_port: u16) -> Result<Vec<Address>, UrlError> {
        self.hosts.split(',').map(|host| self.host(host, default_port)).collect()
    }

    fn host(&self, text: &str, default_port: u16) -> Result<Address, UrlError> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err(self.error("missing host"));
        }
        let port = match port {
            None => default_port,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| self.error("invalid port: expected a number from 1 to 65535"))?,
        };
        Ok(Address::Tcp(host.to_owned(), port))
    }
}

fn scheme_of(scheme: &str) -> Result<(Shape, bool), UrlError> {
    let (base, shape) = scheme.split_once('+').unwrap_or((scheme, ""));
    let tls = match base {
        "redis" | "valkey" => Some(false),
        "rediss" | "valkeys" => Some(true),
        "unix" if shape.is_empty() => return Ok((Shape::Unix, false)),
        _ => None,
    };
    let shape = match shape {
        "" => Some(Shape::One),
        "unix" if tls == Some(false) => Some(Shape::Unix),
        "cluster" => Some(Shape::Cluster),
        "sentinel" => Some(Shape::Sentinel),
        _ => None,
    };
    let is_name = scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    shape.zip(tls).ok_or_else(|| UrlError {
        problem: if is_name { format!("unknown scheme `{scheme}://`") } else { BEGINS.to_owned() },
        example: ONE,
    })
}

/// Omits user and password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |addresses: &[Address]| {
            addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
        };
        let scheme = if self.access.tls.is_some() { "rediss" } else { "redis" };
        match &self.servers {
            Servers::One(Address::Unix(path)) => write!(f, "{scheme}+unix://{}", path.display()),
            Servers::One(address) => write!(f, "{scheme}://{address}"),
            Servers::Cluster(addresses) => write!(f, "{scheme}+cluster://{}", list(addresses)),
            Servers::Sentinel { addresses, master, .. } => {
                write!(f, "{scheme}+sentinel://{}/{master}", list(addresses))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RedisUrl {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn one_server() {
        for scheme in ["redis", "valkey"] {
            let url = parsed(&format!("{scheme}://al%40ice:p%3Aw@example.org:7000/3"));
            assert_eq!(url.access.user.as_deref(), Some("al@ice"));
            assert_eq!(url.access.password.as_deref(), Some("p:w"));
            assert_eq!((url.access.database, url.access.tls.is_some()), (3, false));
            assert!(
                matches!(&url.servers, Servers::One(Address::Tcp(host, 7000)) if host == "example.org")
            );
        }
        let url = parsed("redis://:secret@[::1]");
        assert!(matches!(&url.servers, Servers::One(Address::Tcp(host, 6379)) if host == "::1"));
        assert_eq!((url.access.user, url.access.password.as_deref()), (None, Some("secret")));
        assert!(parsed("valkeys://localhost").access.tls.is_some());
    }

    #[test]
    fn sockets_clusters_and_sentinels() {
        let url = parsed("redis+unix:///run/redis.sock?db=2");
        assert!(
            matches!(&url.servers, Servers::One(Address::Unix(path)) if path == "/run/redis.sock")
        );
        assert_eq!(url.access.database, 2);
        assert!(matches!(parsed("unix:///a").servers, Servers::One(Address::Unix(_))));
        let url = parsed("rediss+cluster://a,b:7001,c");
        assert_eq!(url.to_string(), "rediss+cluster://a:6379,b:7001,c:6379");
        let url = parsed("valkey+sentinel://u:p@a,b/main/4?sentinel_user=s&sentinel_password=t");
        assert_eq!(url.to_string(), "redis+sentinel://a:26379,b:26379/main");
        assert_eq!(url.access.database, 4);
        let Servers::Sentinel { access, .. } = url.servers else { panic!("sentinels") };
        assert_eq!(access.password.as_deref(), Some("t"));
    }

    #[test]
    fn errors_name_the_problem_and_show_an_example() {
        for (text, problem) in [
            ("localhost:6379", "expected an address that begins with redis://"),
            ("http://localhost", "unknown scheme `http://`"),
            ("redis://", "missing host"),
            ("redis://a:x", "invalid port: expected a number from 1 to 65535"),
            ("redis://a:0", "invalid port: expected a number from 1 to 65535"),
            ("redis://a/x", "invalid database: expected a number, such as 0"),
            ("redis://a,b", "several servers need redis+cluster:// or redis+sentinel://"),
            ("redis://a/1/2", "unexpected text after the database number"),
            ("redis://a?sentinel_user=x", NO_OPTION),
            ("redis+cluster://a/1", "a cluster has only database 0"),
            ("redis+sentinel://a", "missing name of the master"),
            ("redis://a?timeout=3", NO_OPTION),
            ("redis://a?ca=/x", "certificates need TLS: use rediss instead of redis"),
            ("rediss://a?cert=/x", "expected both `cert` and `key`, or neither"),
            ("redis://u:se/cret@a", STRAY),
            ("redis://u:se?cret@a", STRAY),
            ("redis://u:se?cret=x@a", STRAY),
            ("redis://u:se/cret?a=b@a", STRAY),
            ("redis://u:se?db=1@a", STRAY),
            ("redis+sentinel://a/m?sentinel_passwords=x@y", STRAY),
            ("redis+unix:///x@y?db=@", STRAY),
            ("redis://u:%zz@a", ESCAPES),
            ("redis://u%:p@a", ESCAPES),
            ("redis://u:p%2@a", ESCAPES),
            ("redis://u:%+1@a", ESCAPES),
            ("redis://u:%ff@a", NOT_UTF_8),
            ("redis+sentinel://a/m?sentinel_password=%zz", ESCAPES),
            ("redis+sentinel://a/%zz", ESCAPES),
            ("redis+unix:///run/%zz", ESCAPES),
            ("redis+unix://run/x", "expected the path of the socket after three slashes"),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{problem}; example: redis")), "{text}: {error}");
        }
    }

    #[test]
    fn errors_and_debug_output_hide_secrets() {
        let url = parsed("redis+sentinel://u:hunter2@a/m?sentinel_password=hunter3");
        let shown = format!("{url} {url:?}");
        assert!(!shown.contains("hunter"), "{shown}");
        assert_eq!(
            parsed("redis+sentinel://a/m?sentinel_user=x@y&sentinel_password=@").to_string(),
            "redis+sentinel://a:26379/m"
        );
        for text in [
            "redis://bob:hunter2?a=b@host:6379",
            "redis://bob:x/hunter2?a=b@host:6379",
            "redis://default:hunter2",
            "redis://user:hunter2:6379",
            "redis://user:p/hunter2",
            "redis://user:1/hunter2",
            "redis://user:1?hunter2",
            "redis://user:1?db=hunter2",
            "redis://user:hunter%zz@host",
            "redis://user:hunter%ff@host",
            "user:hunter2@redis://host",
            "hunter2@host:6379",
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter"), "{text}: {error}");
        }
    }
}
