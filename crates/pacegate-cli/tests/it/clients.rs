//! Blocking clients, and a folder for the files of a service.

use std::{
    fs, io,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Runtime,
};

/// A client with one HTTP/1.1 connection.
pub(crate) struct Http<S: Read = TcpStream> {
    stream: BufReader<S>,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of its head, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A client with one gRPC connection.
pub(crate) struct Grpc {
    runtime: Runtime,
    client: SendRequest<Full<Bytes>>,
    /// The `grpc-timeout` of calls.
    pub(crate) timeout: Option<&'static str>,
}

/// A gRPC response.
#[derive(Debug)]
pub(crate) struct Told {
    /// The gRPC status. 0 is success.
    pub(crate) status: u32,
    /// True if the overall code is `OK`.
    pub(crate) allowed: bool,
    /// Remaining units of the first descriptor.
    pub(crate) remaining: u32,
    /// True if the initial metadata marks the answer as degraded.
    pub(crate) degraded: bool,
}

/// A folder for the files of a service, deleted on drop.
pub(crate) struct Folder(TempDir);

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<Limit>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

/// A limit of a descriptor. The unit 4 is a day.
#[derive(Clone, PartialEq, Message)]
struct Limit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Verdict {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ASK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Opens a connection with timeouts for reads and writes.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Opens a TLS connection to a server with this name.
pub(crate) fn connect_tls(
    address: SocketAddr,
    name: &'static str,
    config: Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from(name).unwrap();
    let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, connect(address)?);
    stream.conn.complete_io(&mut stream.sock)?;
    Ok(stream)
}

/// Encodes a RESP command.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend([*word, b"\r\n"].concat());
    }
    bytes
}

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::over(connect(address)?))
    }
}

impl<S: Read + Write> Http<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Sends `POST /v1/check`. Returns an error if the connection ended before the whole answer arrived.
    pub(crate) fn check(&mut self, key: Option<&str>, body: &str) -> io::Result<Answer> {
        self.request("POST", "/v1/check", key, body)
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.request("GET", path, None, "")
    }

    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &str,
    ) -> io::Result<Answer> {
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{key}\r\n{body}"
        );
        self.send(&text)
    }

    /// Sends the bytes of a request.
    pub(crate) fn send(&mut self, text: &str) -> io::Result<Answer> {
        self.stream.get_mut().write_all(text.as_bytes())?;
        self.stream.get_mut().flush()?;
        self.read()
    }

    pub(crate) fn read(&mut self) -> io::Result<Answer> {
        let early = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(early());
            }
        }
        let head = head.to_ascii_lowercase();
        let status = head.strip_prefix("http/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|status| status.parse().ok());
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8(body).unwrap();
        Ok(Answer { status: status.ok_or_else(early)?, head, body })
    }
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns the value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Returns `true` if the server closes the connection after it.
    pub(crate) fn is_last(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }
}

impl Grpc {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::begin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    pub(crate) fn connect_tls(
        address: SocketAddr,
        name: &'static str,
        config: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let mut config = (*config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        Self::begin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            connector.connect(ServerName::try_from(name).unwrap(), stream).await
        })
    }

    fn begin<I>(io: impl Future<Output = io::Result<I>>) -> io::Result<Self>
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let io = TokioIo::new(io.await?);
            let connected = handshake(TokioExecutor::new(), io).await;
            let (client, connection) = connected.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Ok::<_, io::Error>(client)
        })?;
        Ok(Self { runtime, client, timeout: None })
    }

    /// Checks one descriptor. Returns an error if the connection ended before the whole answer arrived.
    pub(crate) fn ask(
        &mut self,
        key: Option<&str>,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> io::Result<Told> {
        self.send(key, domain, Descriptor::new(entries))
    }

    /// Checks one descriptor with an inline limit per day.
    pub(crate) fn ask_with_limit(
        &mut self,
        key: Option<&str>,
        domain: &str,
        entries: &[(&str, &str)],
        requests_per_unit: u32,
    ) -> io::Result<Told> {
        let limit = Some(Limit { requests_per_unit, unit: 4 });
        self.send(key, domain, Descriptor { limit, ..Descriptor::new(entries) })
    }

    /// Refunds one descriptor.
    pub(crate) fn give_back(
        &mut self,
        key: Option<&str>,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> io::Result<Told> {
        let descriptor = Descriptor { is_negative_hits: true, ..Descriptor::new(entries) };
        self.send(key, domain, descriptor)
    }

    fn send(
        &mut self,
        key: Option<&str>,
        domain: &str,
        descriptor: Descriptor,
    ) -> io::Result<Told> {
        let descriptors = vec![descriptor];
        let message = Question { domain: domain.into(), descriptors }.encode_to_vec();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(message.len().try_into().unwrap());
        body.put_slice(&message);
        let mut request = http::Request::post(format!("http://pacegate{ASK}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(timeout) = self.timeout {
            request = request.header("grpc-timeout", timeout);
        }
        let request = request.body(Full::new(body.freeze())).unwrap();
        let client = &mut self.client;
        let answered = self.runtime.block_on(async move {
            let ready = client.ready().await;
            let answered = async {
                ready?;
                let (head, body) = client.send_request(request).await?.into_parts();
                Ok::<_, hyper::Error>((head.headers, body.collect().await?))
            };
            tokio::time::timeout(PATIENCE, answered).await
        });
        let (mut headers, body) = answered?.map_err(io::Error::other)?;
        headers.extend(body.trailers().cloned().unwrap_or_default());
        let status =
            headers.get("grpc-status").and_then(|status| status.to_str().ok()?.parse().ok());
        let early = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let message = body.to_bytes();
        let verdict = Verdict::decode(message.get(5..).unwrap_or_default()).map_err(|_| early())?;
        Ok(Told {
            status: status.ok_or_else(early)?,
            allowed: verdict.overall_code == 1,
            remaining: verdict.statuses.first().map_or(0, |status| status.limit_remaining),
            degraded: headers.get("pacegate-degraded").is_some_and(|value| value == "true"),
        })
    }
}

impl Descriptor {
    fn new(entries: &[(&str, &str)]) -> Self {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        Self { entries: entries.iter().map(entry).collect(), ..Self::default() }
    }
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::with_prefix("pacegate-it-").unwrap())
    }

    /// Creates a folder with a config file.
    pub(crate) fn with_config(text: &str) -> Self {
        let folder = Self::new();
        folder.replace("pacegate.yaml", text);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path of the config file.
    pub(crate) fn config(&self) -> String {
        self.path("pacegate.yaml").to_str().unwrap().to_owned()
    }

    /// Replaces a file atomically.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let aside = self.path(".aside");
        fs::write(&aside, text).unwrap();
        fs::rename(aside, self.path(name)).unwrap();
    }
}
