//! A small HTTP client, for commands that call a running server, for webhooks and for the export of traces.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// An HTTP client of one server.
#[derive(Clone)]
pub struct Client {
    server: Uri,
    tls: Option<TlsConnector>,
    /// Sent as a bearer token.
    key: Option<String>,
}

/// An open connection of a [`Client`].
#[derive(Debug)]
pub(crate) struct ClientConnection {
    client: Client,
    sender: http1::SendRequest<Full<Bytes>>,
    running: JoinHandle<()>,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum ClientError {
    #[error("invalid server address `{0}`: expected for example http://127.0.0.1:8080")]
    Address(String),
    /// Does not contain the address, because it may contain a password.
    #[error(
        "the address must not contain a user or a password: expected for example http://127.0.0.1:8080"
    )]
    Login,
    #[error("cannot read {file}: {error}")]
    Authority { file: String, error: String },
    #[error("cannot reach {server}: {error}")]
    Unreachable { server: String, error: std::io::Error },
    #[error("timed out waiting for {0}")]
    Late(String),
    #[error("HTTP request to {server} failed: {error}")]
    Http { server: String, error: String },
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
}

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response body.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

impl Client {
    /// Creates a client for the server at this address, which may have a path prefix. Certificates are verified against
    /// `authority`, a PEM file. Default: the certificates that the system trusts.
    pub fn new(
        server: &str,
        authority: Option<&Path>,
        key: Option<String>,
    ) -> Result<Self, ClientError> {
        let client = Self::for_url(server, authority)?;
        match client.server.query() {
            Some(_) => Err(ClientError::Address(server.chars().take(200).collect())),
            None => Ok(Self { key, ..client }),
        }
    }

    /// Creates a client for one URL, which may have a path and a query. See [`Client::new`].
    pub(crate) fn for_url(server: &str, authority: Option<&Path>) -> Result<Self, ClientError> {
        if server.contains('@') {
            return Err(ClientError::Login);
        }
        let address = || ClientError::Address(server.chars().take(200).collect());
        let server: Uri = server.parse().map_err(|_| address())?;
        let is_tls = match server.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(address()),
        };
        // Reject an invalid port instead of using the default one, where another server may listen.
        let is_whole = server.authority().is_some_and(|authority| {
            authority.port_u16().is_some() || authority.as_str() == authority.host()
        });
        if !is_whole {
            return Err(address());
        }
        let tls = if is_tls { Some(connector(authority)?) } else { None };
        Ok(Self { server, tls, key: None })
    }

    /// Sends a request for a path and returns the response. With a body, it is a POST of JSON.
    pub async fn ask(
        &self,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let request = self.request(path, body)?;
        let late = |_| ClientError::Late(self.server.to_string());
        let response = timeout(REQUEST_TIMEOUT, self.send(request)).await.map_err(late)??;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request to this server unchanged, except for its `Host`.
    pub async fn send_unchanged(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (mut head, body) = request.into_parts();
        let host = self.server.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(|error| self.failed(&error))?;
        head.headers.insert(header::HOST, host);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        head.uri = path.parse().map_err(|error| self.failed(&error))?;
        let sent = self.send(Request::from_parts(head, Full::new(body)));
        timeout(REQUEST_TIMEOUT, sent)
            .await
            .map_err(|_| ClientError::Late(self.server.to_string()))?
    }

    fn request(
        &self,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let host = self.server.authority().map_or("", |authority| authority.as_str());
        let folder = self.server.path().trim_end_matches('/');
        let uri = format!("{folder}{path}");
        let mut request = Request::builder().uri(uri).header(header::HOST, host);
        if body.is_some() {
            request = request.method("POST").header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        request.map_err(|error| self.failed(&error))
    }

    /// Returns a POST of JSON to the URL of this client.
    pub(crate) fn post(&self, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        let path = self.server.path_and_query().map_or("/", |path| path.as_str());
        let host = self.server.authority().map_or("", |authority| authority.as_str());
        let request = Request::builder().method("POST").uri(path).header(header::HOST, host);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        request.body(Full::new(body)).map_err(|error| self.failed(&error))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, ClientError> {
        self.connect().await?.exchange(request, MAX_RESPONSE_BYTES).await
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<ClientConnection, ClientError> {
        let (host, port) = self.host_and_port();
        let unreachable =
            |error| ClientError::Unreachable { server: self.server.to_string(), error };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((&*bare, port)).await.map_err(unreachable)?;
        match &self.tls {
            None => self.handshake(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(bare)?;
                let stream = tls.connect(name, stream).await.map_err(unreachable)?;
                self.handshake(stream).await
            }
        }
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<ClientConnection, ClientError> {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(&error))?;
        // Errors of the connection reach the caller through `send_request`.
        let running = tokio::spawn(async move { drop(connection.await) });
        Ok(ClientConnection { client: self.clone(), sender, running })
    }

    /// Returns the host and the port of the server.
    pub(crate) fn host_and_port(&self) -> (&str, u16) {
        let port = if self.tls.is_some() { 443 } else { 80 };
        (self.server.host().unwrap_or_default(), self.server.port_u16().unwrap_or(port))
    }

    fn failed(&self, error: &dyn std::error::Error) -> ClientError {
        ClientError::Http { server: self.server.to_string(), error: error.to_string() }
    }
}

impl ClientConnection {
    /// Returns `true` if the server has not closed the connection.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request, and reads a response with a body of at most `max_bytes`.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let failed = |error: &dyn std::error::Error| self.client.failed(error);
        self.sender.ready().await.map_err(|error| failed(&error))?;
        let sent = self.sender.send_request(request).await;
        let (head, body) = sent.map_err(|error| failed(&error))?.into_parts();
        let body = Limited::new(body, max_bytes).collect().await;
        let body = body.map_err(|error| failed(&*error))?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn connector(authority: Option<&Path>) -> Result<TlsConnector, ClientError> {
    let mut roots = RootCertStore::empty();
    match authority {
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            roots.add_parsable_certificates(found);
        }
        Some(file) => {
            let unreadable =
                |error: String| ClientError::Authority { file: file.display().to_string(), error };
            let text = fs::read(file).map_err(|error| unreadable(error.to_string()))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
            let found = found.map_err(|error| unreadable(error.to_string()))?;
            if roots.add_parsable_certificates(found).0 == 0 {
                return Err(unreadable("the file contains no certificate".to_owned()));
            }
        }
    }
    pacegate_redis::install_crypto_provider();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.server).finish_non_exhaustive()
    }
}
