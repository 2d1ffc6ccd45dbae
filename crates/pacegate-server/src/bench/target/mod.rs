//! Who is asked, and how: requests written beforehand, and how answers are read. One file per protocol.

mod http;
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

pub(crate) use resp::{Reading, Script};

/// A server, and all that is said to it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    address: SocketAddr,
    /// What a connection begins with, and how many replies it brings.
    greeting: Greeting,
    /// One for each cost.
    templates: Vec<Template>,
    protocol: Protocol,
}

/// What is asked for, by the words of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) url: &'a str,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) limit: Limit,
    /// The attribute or entry of a descriptor that carries the key, for what is decided by policies.
    pub(crate) attribute: Option<&'a str>,
    pub(crate) domain: &'a str,
    pub(crate) script: Option<Script>,
    pub(crate) reading: Reading,
    /// What all keys begin with.
    pub(crate) prefix: &'a str,
    pub(crate) costs: &'a [u32],
    pub(crate) api_key: Option<&'a str>,
}

/// What a server understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Dialect {
    /// Pacegate's own: POST /v1/check over HTTP, PACEGATE.CHECK over RESP
    Pacegate,
    /// CL.THROTTLE over RESP, of redis-cell and Pacegate
    #[value(name = "cl.throttle")]
    ClThrottle,
    /// THROTTLE over RESP, of throttlecrab and Pacegate
    Throttle,
    /// POST /throttle over HTTP, of throttlecrab
    ThrottlecrabHttp,
    /// A script of yours in Redis or Valkey, by EVALSHA
    Script,
    /// INCR in Redis or Valkey, which has no window: to measure, not to check
    Incr,
    /// Envoy's rate limit service over gRPC
    Rls,
}

/// Why a target cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error(
        "`{0}` is not an address: write http://HOST:PORT, resp://HOST:PORT or grpc://HOST:PORT"
    )]
    Address(String),
    #[error("{0} does not speak {1}: its address begins with {2}")]
    Scheme(String, &'static str, &'static str),
    #[error("{0} takes a token bucket only, and not {1}")]
    Bucket(&'static str, Algorithm),
    #[error("{0} takes periods of whole seconds, and not {1:?}")]
    Seconds(&'static str, Duration),
    #[error("the dialect script takes --script FILE")]
    NoScript,
    #[error("the server does not take the script: {0}")]
    Script(io::Error),
    #[error("the user or the password of the address cannot be read: a % stands before two digits")]
    Escape,
    #[error("{0} is too long")]
    TooLong(&'static str),
    #[error("cannot find {0}: {1}")]
    Unknown(String, io::Error),
}

/// A request of which only the key is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Where the digits of the key are.
    keys: Vec<usize>,
    /// Bytes that count against the windows of HTTP/2.
    data: usize,
}

/// The state of one connection's protocol.
#[derive(Debug)]
pub(crate) enum Wire {
    Resp(resp::Reader),
    Http(http::Reader),
    Rls(Box<rls::Session>),
}

#[derive(Clone, Debug)]
enum Protocol {
    Resp(resp::Reader),
    Http(http::Reader),
    Rls,
}

#[derive(Clone, Debug, Default)]
struct Greeting {
    bytes: Vec<u8>,
    replies: usize,
}

/// How replies are read, what is said first, and what is said for each cost.
type Prepared<'a> = (Protocol, Greeting, Box<dyn Fn(u32) -> Template + 'a>);

/// What came of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Allowed,
    Denied,
    /// Neither, and what was said instead.
    Failed(String),
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the answer: {0}")]
pub(crate) struct Garbled(&'static str);

/// Digits of a key, always as many, so that all requests have one length.
const DIGITS: usize = 9;
/// The longest text of the user's own in a request.
const MOST_TEXT: usize = 1_024;
/// The longest part of an answer that is told.
const MOST_SAID: usize = 200;
/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(5);

impl Dialect {
    pub(crate) fn name(self) -> &'static str {
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

    /// Whether nothing but a token bucket can be asked for.
    pub(crate) fn is_bucket(self) -> bool {
        matches!(self, Self::ClThrottle | Self::Throttle | Self::ThrottlecrabHttp)
    }

    /// The one that an address stands for.
    pub(crate) fn of(url: &str) -> Option<Self> {
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
    /// Finds the server, and writes the requests.
    pub(crate) fn new(wanted: &Wanted<'_>) -> Result<Self, TargetError> {
        let url = Url::parse(wanted.url)?;
        let dialect = wanted.dialect.or_else(|| Dialect::of(wanted.url));
        let dialect = dialect.ok_or_else(|| TargetError::Address(shown(wanted.url.as_bytes())))?;
        if !dialect.schemes().contains(&url.scheme) {
            let name = format!("{}://{}", url.scheme, url.host);
            return Err(TargetError::Scheme(name, dialect.name(), dialect.schemes()[0]));
        }
        for (what, text) in [("the domain", wanted.domain), ("the prefix of keys", wanted.prefix)] {
            is_short(what, text)?;
        }
        is_short("the name of the attribute", wanted.attribute.unwrap_or_default())?;
        is_short("the API key", wanted.api_key.unwrap_or_default())?;
        if dialect.is_bucket() && wanted.limit.algorithm() != Algorithm::TokenBucket {
            return Err(TargetError::Bucket(dialect.name(), wanted.limit.algorithm()));
        }
        let address = url.address()?;
        let (protocol, greeting, write) = match url.scheme {
            "http" => http::prepare(wanted, dialect, &url)?,
            "grpc" => rls::prepare(wanted, &url),
            _ => resp::prepare(wanted, dialect, &url, address)?,
        };
        let templates = wanted.costs.iter().map(|&cost| write(cost)).collect();
        Ok(Self { address, greeting, templates, protocol })
    }

    /// A new connection, which has been greeted.
    pub(crate) fn connect(&self) -> io::Result<(TcpStream, Wire)> {
        let stream = TcpStream::connect_timeout(&self.address, CONNECT)?;
        stream.set_nodelay(true)?;
        let mut wire = match &self.protocol {
            Protocol::Resp(reader) => Wire::Resp(reader.clone()),
            Protocol::Http(reader) => Wire::Http(reader.clone()),
            Protocol::Rls => Wire::Rls(Box::default()),
        };
        wire.greet(&stream, &self.greeting)?;
        stream.set_nonblocking(true)?;
        Ok((stream, wire))
    }

    /// Writes a request for a key with the cost of this place.
    #[inline]
    pub(crate) fn write(&self, wire: &mut Wire, key: u32, cost: usize, out: &mut Vec<u8>) {
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

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Wire {
    /// Whether the protocol lets another request of this target be sent now.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Resp(_) | Self::Http(_) => true,
            Self::Rls(session) => session.has_room(),
        }
    }

    /// Reads all answers that are there, and tells which of the requests that wait for one each of them is for. Returns
    /// how many bytes are done with. What the protocol wants said is put into `out`.
    #[inline]
    pub(crate) fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        mut answered: impl FnMut(usize, Reply),
    ) -> Result<usize, Garbled> {
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

    /// The request that has waited longest is no longer waited for.
    #[inline]
    pub(crate) fn forget_first(&mut self) {
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
                0 => return Err(io::Error::other("the connection was closed")),
                read => input.extend_from_slice(&part[..read]),
            }
            let mut refused = None;
            let take = |_, reply| {
                left = left.saturating_sub(1);
                // What is no integer is fine here: `+OK`.
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
    /// Text in which `key` stands for the whole key.
    fn new(text: &[u8], key: &[u8]) -> Self {
        let found = memchr::memmem::find_iter(text, key);
        let keys = found.map(|place| place + key.len() - DIGITS).collect();
        Self { bytes: text.to_vec(), keys, data: 0 }
    }
}

/// The parts of an address.
#[derive(Debug)]
struct Url<'a> {
    scheme: &'a str,
    user: Option<String>,
    password: Option<String>,
    /// With the port.
    host: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, TargetError> {
        // Nothing before an `@` is told: it may be a password.
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
        answering(&found).ok_or_else(|| unknown(io::Error::other("it has no address")))
    }
}

/// The first address that takes a connection, or else the first of all: `localhost` is often two, and a server listens
/// on one of them.
fn answering(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let is_open = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT).is_ok();
    match addresses {
        [only] => Some(*only),
        all => all.iter().find(is_open).or(all.first()).copied(),
    }
}

/// A time that is over is told as such, and not as a resource that is lacking.
fn in_vain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other(format!("no answer came for {} s", CONNECT.as_secs()))
        }
        _ => error,
    }
}

fn is_short(what: &'static str, text: &str) -> Result<(), TargetError> {
    if text.len() > MOST_TEXT { Err(TargetError::TooLong(what)) } else { Ok(()) }
}

/// With its %-signs read, as in the address of a store.
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

/// A key as it is sent, with digits that are found again.
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

/// A part of what a server said, with nothing in it that a terminal would obey.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_SAID)]).escape_debug().to_string()
}

/// Seconds of a limit's period.
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
    fn of_several_addresses_the_one_that_answers_is_asked() {
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
