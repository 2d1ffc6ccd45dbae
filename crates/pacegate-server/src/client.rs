//! A small HTTP client, for commands that call a running server and for the export of traces.

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
        if !is_whole || server.query().is_some() {
            return Err(address());
        }
        let tls = if is_tls { Some(connector(authority)?) } else { None };
        Ok(Self { server, tls, key })
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

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, ClientError> {
        let (host, port) = self.host_and_port();
        let unreachable =
            |error| ClientError::Unreachable { server: self.server.to_string(), error };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((&*bare, port)).await.map_err(unreachable)?;
        match &self.tls {
            None => self.exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(bare)?;
                let stream = tls.connect(name, stream).await.map_err(unreachable)?;
                self.exchange(stream, request).await
            }
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(&error))?;
        // Errors of the connection reach the caller through `send_request`.
        let running = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| self.failed(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| self.failed(&*error))?.to_bytes();
        running.abort();
        Ok(Response::from_parts(head, body))
    }

    fn host_and_port(&self) -> (&str, u16) {
        let port = if self.tls.is_some() { 443 } else { 80 };
        (self.server.host().unwrap_or_default(), self.server.port_u16().unwrap_or(port))
    }

    fn failed(&self, error: &dyn std::error::Error) -> ClientError {
        ClientError::Http { server: self.server.to_string(), error: error.to_string() }
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
