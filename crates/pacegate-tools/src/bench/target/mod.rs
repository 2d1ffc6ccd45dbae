//! Target servers: encoding requests and decoding responses, with one file per protocol.

mod http;
mod proto;
mod resp;
mod rls;

use std::{
    borrow::Cow,
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

use pacegate::{Algorithm, Limit};
use percent_encoding::percent_decode_str;

pub use resp::{Reading, Script};

/// A server, with everything needed to send requests to it.
#[derive(Clone, Debug)]
pub struct Target {
    address: SocketAddr,
    /// Bytes to send on a new connection, and the number of replies to them.
    greeting: Greeting,
    /// One template per cost.
    templates: Vec<Template>,
    /// State of a new connection.
    wire: Wire,
}

/// The target as given on the command line.
#[derive(Clone, Debug)]
pub struct TargetOptions<'a> {
    /// Address of the server.
    pub url: &'a str,
    /// Protocol; that of the URL by default.
    pub dialect: Option<Dialect>,
    /// The limit to send with each request, or the limit that is configured on the server.
    pub limit: Limit,
    /// The attribute or descriptor entry that carries the key, if policies decide.
    pub attribute: Option<&'a str>,
    /// Domain of the requests.
    pub domain: &'a str,
    /// The script to run.
    pub script: Option<Script>,
    /// Meaning of the script's result.
    pub reading: Reading,
    /// Common prefix of all keys.
    pub prefix: &'a str,
    /// All costs that requests can have.
    pub costs: &'a [u32],
    /// Credential of the server.
    pub api_key: Option<&'a str>,
}

/// Protocol of the target server. The descriptions of the variants are shown in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// Pacegate: POST /v1/check over HTTP, PACEGATE.CHECK over RESP
    Pacegate,
    /// CL.THROTTLE over RESP: redis-cell, Pacegate
    #[value(name = "cl.throttle")]
    ClThrottle,
    /// THROTTLE over RESP: throttlecrab, Pacegate
    Throttle,
    /// POST /throttle over HTTP: throttlecrab
    ThrottlecrabHttp,
    /// A custom Lua script in Redis or Valkey, called with EVALSHA
    Script,
    /// INCR in Redis or Valkey, without a limit: a baseline for speed
    Incr,
    /// Envoy's rate limit service over gRPC
    Rls,
}

/// Reasons why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("invalid server address `{0}`: expected http://, resp:// or grpc:// and HOST:PORT")]
    Address(String),
    #[error("{0} does not support dialect {1}: expected an address that begins with {2}")]
    Scheme(String, &'static str, &'static str),
    #[error("dialect {0} supports only token buckets, not {1}")]
    Bucket(&'static str, Algorithm),
    #[error("dialect {0} supports only periods of whole seconds, not {1:?}")]
    Seconds(&'static str, Duration),
    #[error("dialect script requires --script FILE")]
    NoScript,
    #[error("the server rejected the script: {0}")]
    Script(io::Error),
    #[error("invalid user or password in the address: % must be followed by two hex digits")]
    Escape,
    #[error("{0} is too long")]
    TooLong(&'static str),
    #[error("cannot resolve {0}: {1}")]
    Unknown(String, io::Error),
}

/// An encoded request in which only the key changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Offsets of the key's digits.
    keys: Vec<usize>,
    /// Bytes that count against the HTTP/2 flow-control windows.
    data: usize,
}

/// Protocol state of one connection.
#[derive(Clone, Debug)]
pub enum Wire {
    Resp(resp::RespReader),
    Http(http::HttpReader),
    Rls(Box<rls::Session>),
}

#[derive(Clone, Debug, Default)]
struct Greeting {
    bytes: Vec<u8>,
    replies: usize,
}

/// The reply parser, the bytes to send on a new connection, and an encoder that takes the cost.
type Prepared<'a> = (Wire, Greeting, Box<dyn Fn(u32) -> Template + 'a>);

/// Outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Allowed,
    Denied,
    /// An error or an unexpected reply, with its text.
    Failed(String),
}

/// A protocol violation; the connection cannot be used further.
#[derive(Debug, thiserror::Error)]
#[error("invalid response: {0}")]
pub struct InvalidReply(&'static str);

/// Number of digits of a key. It is fixed, so that all requests have the same length.
const DIGITS: usize = 9;
/// Maximum length of a user-provided text in a request.
const MAX_TEXT_BYTES: usize = 1_024;
/// Maximum length of a quoted response.
const MAX_QUOTED_BYTES: usize = 200;
/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);

impl Dialect {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pacegate => "pacegate",
            Self::ClThrottle => "cl.throttle",
            Self::Throttle => "throttle",
            Self::ThrottlecrabHttp => "throttlecrab-http",
            Self::Script => "script",
            Self::Incr => "incr",
            Self::Rls => "rls",
        }
    }

    /// Returns true if the dialect supports only token buckets.
    pub fn is_bucket(self) -> bool {
        matches!(self, Self::ClThrottle | Self::Throttle | Self::ThrottlecrabHttp)
    }

    /// Returns the default dialect for an address.
    pub fn of(url: &str) -> Option<Self> {
        match url.split_once("://")?.0 {
            "http" => Some(Self::Pacegate),
            "resp" | "redis" => Some(Self::ClThrottle),
            "grpc" => Some(Self::Rls),
            _ => None,
        }
    }

    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Pacegate => &["http", "resp", "redis"],
            Self::ThrottlecrabHttp => &["http"],
            Self::ClThrottle | Self::Throttle | Self::Script | Self::Incr => &["resp", "redis"],
            Self::Rls => &["grpc"],
        }
    }
}

impl Target {
    /// Resolves the server's address and encodes the requests.
    pub fn new(options: &TargetOptions<'_>) -> Result<Self, TargetError> {
        let url = Url::parse(options.url)?;
        let dialect = options.dialect.or_else(|| Dialect::of(options.url));
        let dialect = dialect.ok_or_else(|| TargetError::Address(shown(options.url.as_bytes())))?;
        if !dialect.schemes().contains(&url.scheme) {
            let name = format!("{}://{}", url.scheme, url.host);
            return Err(TargetError::Scheme(name, dialect.name(), dialect.schemes()[0]));
        }
        for (what, text) in [("domain", options.domain), ("key prefix", options.prefix)] {
            is_short(what, text)?;
        }
        is_short("attribute name", options.attribute.unwrap_or_default())?;
        is_short("API key", options.api_key.unwrap_or_default())?;
        if dialect.is_bucket() && options.limit.algorithm() != Algorithm::TokenBucket {
            return Err(TargetError::Bucket(dialect.name(), options.limit.algorithm()));
        }
        let address = url.address()?;
        let (wire, greeting, write) = match url.scheme {
            "http" => http::prepare(options, dialect, &url)?,
            "grpc" => rls::prepare(options, &url),
            _ => resp::prepare(options, dialect, &url, address)?,
        };
        let templates = options.costs.iter().map(|&cost| write(cost)).collect();
        Ok(Self { address, greeting, templates, wire })
    }

    /// Opens a connection and completes the protocol handshake.
    pub fn connect(&self) -> io::Result<(TcpStream, Wire)> {
        let stream = TcpStream::connect_timeout(&self.address, CONNECT)?;
        stream.set_nodelay(true)?;
        let mut wire = self.wire.clone();
        wire.greet(&stream, &self.greeting)?;
        stream.set_nonblocking(true)?;
        Ok((stream, wire))
    }

    /// Encodes a request for `key`, with the cost at index `cost`.
    #[inline]
    pub fn write(&self, wire: &mut Wire, key: u32, cost: usize, out: &mut Vec<u8>) {
        let template = &self.templates[cost];
        let start = out.len();
        out.extend_from_slice(&template.bytes);
        for &place in &template.keys {
            let digits = start + place;
            write_digits(key, &mut out[digits..digits + DIGITS]);
        }
        if let Wire::Rls(session) = wire {
            session.open(template.data, &mut out[start..]);
        }
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Wire {
    /// Returns true if the protocol allows another request now.
    #[inline]
    pub fn has_room(&self) -> bool {
        match self {
            Self::Resp(_) | Self::Http(_) => true,
            Self::Rls(session) => session.has_room(),
        }
    }

    /// Parses all complete responses. Calls `answered` with the position of the request in the queue and its
    /// reply. Returns the number of bytes consumed. Appends protocol messages to send, such as
    /// acknowledgements, to `out`.
    #[inline]
    pub fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        mut answered: impl FnMut(usize, Reply),
    ) -> Result<usize, InvalidReply> {
        let (mut done, mut nth) = (0, 0);
        loop {
            let rest = &input[done..];
            let in_order = match self {
                Self::Resp(reader) => reader.read(rest)?,
                Self::Http(reader) => reader.read(rest)?,
                Self::Rls(session) => match session.read(rest, out, &mut answered)? {
                    Some(length) => {
                        done += length;
                        continue;
                    }
                    None => return Ok(done),
                },
            };
            let Some((length, reply)) = in_order else { return Ok(done) };
            answered(nth, reply);
            nth += 1;
            done += length;
        }
    }

    /// Removes the oldest request from the protocol state.
    #[inline]
    pub fn forget_first(&mut self) {
        if let Self::Rls(session) = self {
            session.forget_first();
        }
    }

    fn greet(&mut self, stream: &TcpStream, greeting: &Greeting) -> io::Result<()> {
        use io::{Read, Write};
        let mut stream = stream;
        stream.set_read_timeout(Some(CONNECT))?;
        stream.write_all(&greeting.bytes)?;
        let (mut left, mut input, mut out) = (greeting.replies, Vec::new(), Vec::new());
        while left > 0 {
            let mut part = [0; 1_024];
            match stream.read(&mut part).map_err(in_vain)? {
                0 => return Err(io::Error::other("connection closed")),
                read => input.extend_from_slice(&part[..read]),
            }
            let mut refused = None;
            let take = |_, reply| {
                left = left.saturating_sub(1);
                // A reply that is not an integer, such as `+OK`, is fine here.
                if let Reply::Failed(text) = reply
                    && text != resp::NO_INTEGER
                {
                    refused = Some(text);
                }
            };
            let done = self.read(&input, &mut out, take).map_err(io::Error::other)?;
            input.drain(..done);
            if let Some(text) = refused {
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }
}

impl Template {
    /// Creates a template from a request that contains `key` as the whole key.
    fn new(text: &[u8], key: &[u8]) -> Self {
        let found = memchr::memmem::find_iter(text, key);
        let keys = found.map(|place| place + key.len() - DIGITS).collect();
        Self { bytes: text.to_vec(), keys, data: 0 }
    }
}

/// The parts of a server address.
#[derive(Debug)]
struct Url<'a> {
    scheme: &'a str,
    user: Option<String>,
    password: Option<String>,
    /// Includes the port.
    host: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, TargetError> {
        // Leave out everything before an `@`: it may contain a password.
        let wrong = || {
            let end = text.rsplit('@').next().unwrap_or_default();
            TargetError::Address(shown(end.as_bytes()))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let rest = rest.trim_end_matches('/');
        let (credentials, host) = match rest.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, rest),
        };
        let known = ["http", "resp", "redis", "grpc"].contains(&scheme);
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !known || !has_port || host.contains(['/', '?']) || !host.is_ascii() {
            return Err(wrong());
        }
        let (user, password) = match credentials.map(|text| text.split_once(':')) {
            Some(Some((user, password))) => (Some(user), Some(password)),
            Some(None) => (None, credentials),
            None => (None, None),
        };
        let user = user.filter(|user| !user.is_empty()).map(decoded).transpose()?;
        Ok(Self { scheme, user, password: password.map(decoded).transpose()?, host })
    }

    fn address(&self) -> Result<SocketAddr, TargetError> {
        let unknown = |error| TargetError::Unknown(self.host.to_owned(), error);
        let found: Vec<SocketAddr> = self.host.to_socket_addrs().map_err(unknown)?.collect();
        answering(&found).ok_or_else(|| unknown(io::Error::other("no address found")))
    }
}

/// Returns the first address that accepts a connection, or else the first one. `localhost` often has two, and
/// a server listens on only one of them.
fn answering(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let is_open = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT).is_ok();
    match addresses {
        [only] => Some(*only),
        all => all.iter().find(is_open).or(all.first()).copied(),
    }
}

/// Reports a connect timeout as such, not as "resource temporarily unavailable".
fn in_vain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other(format!("no response for {} s", CONNECT.as_secs()))
        }
        _ => error,
    }
}

fn is_short(what: &'static str, text: &str) -> Result<(), TargetError> {
    if text.len() > MAX_TEXT_BYTES { Err(TargetError::TooLong(what)) } else { Ok(()) }
}

/// Decodes percent-encoding, as in the URL of a store.
fn decoded(text: &str) -> Result<String, TargetError> {
    let is_escape = |after: &str| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return Err(TargetError::Escape);
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| TargetError::Escape)
}

/// Returns a sample key whose digits can be found in an encoded request.
fn sample_key(prefix: &str) -> String {
    format!("{prefix}{:0DIGITS$}", 987_654_321)
}

fn write_digits(key: u32, place: &mut [u8]) {
    let mut left = key;
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// Returns the start of a response, with control characters escaped for the terminal.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_QUOTED_BYTES)]).escape_debug().to_string()
}

/// Returns the period of the limit in seconds.
fn seconds(dialect: Dialect, limit: &Limit) -> Result<u64, TargetError> {
    let period = limit.period();
    match period.subsec_nanos() {
        0 => Ok(period.as_secs()),
        _ => Err(TargetError::Seconds(dialect.name(), period)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_address_that_accepts_connections_is_used() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed: SocketAddr = "127.0.0.1:1".parse().unwrap();
        for (addresses, expected) in [
            (&[closed, open][..], Some(open)),
            (&[open, closed], Some(open)),
            (&[closed, closed], Some(closed)),
            (&[closed], Some(closed)),
            (&[], None),
        ] {
            assert_eq!(answering(addresses), expected, "{addresses:?}");
        }
    }
}
