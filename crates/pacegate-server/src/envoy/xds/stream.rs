//! A gRPC stream to a config server, over HTTP/2.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, uri::Authority};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::{
    ClientConfig,
    pki_types::{PrivateKeyDer, ServerName, pem::PemObject},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    super::{
        file::shorten,
        grpc::message::{PREFIX, framed},
    },
    options::{ClientIdentity, XdsOptions, XdsTlsFiles, host_and_port},
    proto::{DiscoveryRequest, DiscoveryResponse},
};
use crate::service::{TlsError, certificates};

/// A stream of requests and responses. Dropping it closes the connection.
pub(super) struct DiscoveryStream {
    requests: mpsc::Sender<Bytes>,
    responses: Incoming,
    /// Received bytes that are not a whole message yet.
    buffer: BytesMut,
    max_message_bytes: usize,
    /// Runs the connection.
    _connection: JoinSet<()>,
}

/// The reason why a stream ended or cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("cannot connect within {CONNECT_TIMEOUT:?}")]
    Timeout,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("invalid server name `{0}`: expected a host name or an IP address")]
    ServerName(String),
    #[error("HTTP/2: {}", reason(.0))]
    Http(#[from] hyper::Error),
    #[error("HTTP status {0}: expected a gRPC server")]
    Response(StatusCode),
    #[error("gRPC status {code}: {message}")]
    Status { code: String, message: String },
    #[error("the config server closed the stream")]
    Closed,
    #[error("a message of {0} bytes exceeds XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")]
    TooLarge(usize),
    #[error("the message is compressed, which was not requested")]
    Compressed,
    #[error("cannot decode the response: {0}")]
    Decode(#[from] prost::DecodeError),
}

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Detects a config server that vanished. Not with HTTP/2 pings, because gRPC servers in Go close connections with more
/// than one ping in five minutes.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);
/// The same while a request is not acknowledged, which turns keepalive off. The kernel would retry for 15 minutes.
#[cfg(target_os = "linux")]
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// HTTP/2 flow-control window.
const WINDOW_BYTES: u32 = 1 << 20;
/// Requests that wait to be sent. Each answers a response, so there is rarely more than one.
const MAX_QUEUED: usize = 4;

impl DiscoveryStream {
    /// Connects, sends the first request and waits for the start of the response. That has no deadline: a config server
    /// without resources for this node sends nothing.
    pub(super) async fn open(
        server: &Authority,
        options: &XdsOptions,
        first: &DiscoveryRequest,
    ) -> Result<Self, StreamError> {
        let connecting = timeout(CONNECT_TIMEOUT, connect(server, options.tls.as_ref()));
        let stream = connecting.await.map_err(|_| StreamError::Timeout)??;
        let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let mut running = JoinSet::new();
        running.spawn(async move {
            // Its errors also end the stream.
            let _ = connection.await;
        });
        let (requests, body) = mpsc::channel(MAX_QUEUED);
        let request = request(server, options, RequestBody(body));
        let _ = requests.try_send(framed(first));
        let response = client.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(StreamError::Response(response.status()));
        }
        if let Some(error) = failure(response.headers()) {
            return Err(error);
        }
        Ok(Self {
            requests,
            responses: response.into_body(),
            buffer: BytesMut::new(),
            max_message_bytes: usize::try_from(options.max_message_bytes).unwrap_or(usize::MAX),
            _connection: running,
        })
    }

    pub(super) async fn send(&self, request: &DiscoveryRequest) -> Result<(), StreamError> {
        self.requests.send(framed(request)).await.map_err(|_| StreamError::Closed)
    }

    /// Receives the next response. If the future is dropped, nothing is lost.
    pub(super) async fn receive(&mut self) -> Result<DiscoveryResponse, StreamError> {
        loop {
            if let Some(message) = take_message(&mut self.buffer, self.max_message_bytes)? {
                return Ok(DiscoveryResponse::decode(message)?);
            }
            let frame = self.responses.frame().await.ok_or(StreamError::Closed)??;
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Err(failure(&trailers).unwrap_or(StreamError::Closed));
                }
            }
        }
    }
}

/// A connection to a config server.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

async fn connect(
    server: &Authority,
    tls: Option<&XdsTlsFiles>,
) -> Result<Box<dyn Connection>, StreamError> {
    let (host, port) = host_and_port(server);
    let stream = open_socket(host, port).await.map_err(StreamError::Connect)?;
    let Some(files) = tls.cloned() else { return Ok(Box::new(stream)) };
    let name = files.server_name.clone().unwrap_or_else(|| host.to_owned());
    let name = ServerName::try_from(name.clone()).map_err(|_| StreamError::ServerName(name))?;
    let reading = tokio::task::spawn_blocking(move || client_config(&files)).await;
    let config = reading.map_err(|error| StreamError::Connect(io::Error::other(error)))??;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    Ok(Box::new(stream.map_err(StreamError::Connect)?))
}

async fn open_socket(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
    Ok(stream)
}

/// Reads the certificates.
fn client_config(files: &XdsTlsFiles) -> Result<ClientConfig, TlsError> {
    pacegate_redis::install_crypto_provider();
    let mut roots = rustls_native_certs::load_native_certs().certs;
    if let Some(file) = &files.ca {
        roots.extend(certificates(file)?);
    }
    let verifier = pacegate_redis::server_verifier(roots).map_err(TlsError::Roots)?;
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &files.client {
        None => builder.with_no_client_auth(),
        Some(ClientIdentity { certificate, key }) => {
            let private = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| TlsError::Read { file: key.clone(), error })?;
            builder
                .with_client_auth_cert(certificates(certificate)?, private)
                .map_err(TlsError::Pair)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn request(server: &Authority, options: &XdsOptions, body: RequestBody) -> Request<RequestBody> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    let uri = http::Uri::builder().scheme(scheme).authority(server.clone()).path_and_query(PATH);
    *request.uri_mut() = uri.build().unwrap_or_default();
    *request.headers_mut() = options.headers.clone();
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    request
}

/// Takes a whole message from the start of the buffer.
fn take_message(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, StreamError> {
    let Some(mut prefix) = buffer.get(..PREFIX) else { return Ok(None) };
    if prefix.get_u8() != 0 {
        return Err(StreamError::Compressed);
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if length > max {
        return Err(StreamError::TooLarge(length));
    }
    if buffer.len() - PREFIX < length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Returns the error in headers or trailers.
fn failure(headers: &HeaderMap) -> Option<StreamError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let code = text("grpc-status").filter(|code| *code != "0")?;
    let message = text("grpc-message").unwrap_or_default();
    Some(StreamError::Status { code: shorten(code, 10), message: shorten(message, 200) })
}

/// Returns an error with its cause.
fn reason(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The requests of a stream.
struct RequestBody(mpsc::Receiver<Bytes>);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|message| message.map(|data| Ok(Frame::data(data))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_request_that_is_not_acknowledged_ends_the_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = open_socket("127.0.0.1", port).await.unwrap();
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
        assert!(socket.keepalive().unwrap());
    }

    #[test]
    fn messages_are_split_at_their_prefixes() {
        let mut buffer = BytesMut::from(&[0, 0, 0, 0, 2, 7][..]);
        assert_eq!(take_message(&mut buffer, 2).unwrap(), None);
        buffer.extend_from_slice(&[8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(take_message(&mut buffer, 2).unwrap().unwrap(), &[7, 8][..]);
        assert_eq!(take_message(&mut buffer, 2).unwrap().unwrap(), &[][..]);
        assert_eq!(take_message(&mut buffer, 2).unwrap(), None);
    }

    #[test]
    fn large_and_compressed_messages_are_errors_before_they_are_complete() {
        let take = |bytes: &[u8]| take_message(&mut BytesMut::from(bytes), 2).unwrap_err();
        assert!(matches!(take(&[0, 0, 0, 0, 3]), StreamError::TooLarge(3)));
        assert!(matches!(take(&[0, 255, 255, 255, 255]), StreamError::TooLarge(_)));
        assert!(matches!(take(&[1, 0, 0, 0, 1]), StreamError::Compressed));
    }
}
