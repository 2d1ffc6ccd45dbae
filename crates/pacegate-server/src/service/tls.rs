use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::{
        ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::config::TlsFiles;

/// The certificate of a listener.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    protocols: &'static [&'static [u8]],
    config: ArcSwap<ServerConfig>,
}

/// The reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {error}", file.display())]
    Read { file: PathBuf, error: pem::Error },
    #[error("{} holds no certificate", .0.display())]
    Empty(PathBuf),
    #[error("certificate and key do not go together: {0}")]
    Pair(rustls::Error),
    #[error("cannot use the clients' authority: {0}")]
    Authority(VerifierBuilderError),
    #[error("invalid name of client certificates `{0}`: expected a host name or an IP address")]
    ClientName(String),
    #[error("a name of client certificates requires their authority: set `client_ca`")]
    NameWithoutAuthority,
    #[error("cannot use the CA certificates: {0}")]
    Roots(rustls::Error),
}

impl Tls {
    /// Reads the files. `protocols` are offered in ALPN, for example for HTTP/2.
    pub(crate) fn load(
        files: TlsFiles,
        protocols: &'static [&'static [u8]],
    ) -> Result<Self, TlsError> {
        let config = read(&files, protocols)?;
        Ok(Self { files, protocols, config: ArcSwap::from_pointee(config) })
    }

    /// Reads the files again. [`Tls::put`] activates the result.
    pub(crate) fn read_again(&self) -> Result<Arc<ServerConfig>, TlsError> {
        read(&self.files, self.protocols).map(Arc::new)
    }

    /// Uses this configuration for new connections.
    pub(crate) fn put(&self, config: Arc<ServerConfig>) {
        self.config.store(config);
    }

    /// Returns the files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let TlsFiles { certificate, key, client_ca, client_name: _ } = &self.files;
        [Some(certificate), Some(key), client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// Returns true if clients need a certificate.
    pub(super) fn verifies_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    pub(super) async fn accept<I>(&self, stream: I) -> io::Result<TlsStream<I>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

fn read(files: &TlsFiles, protocols: &[&[u8]]) -> Result<ServerConfig, TlsError> {
    pacegate_redis::install_crypto_provider();
    let builder = ServerConfig::builder();
    let builder = match (&files.client_ca, &files.client_name) {
        (None, None) => builder.with_no_client_auth(),
        (None, Some(_)) => return Err(TlsError::NameWithoutAuthority),
        (Some(file), name) => {
            builder.with_client_cert_verifier(client_verifier(file, name.as_deref())?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::Read { file: files.key.clone(), error })?;
    let mut config =
        builder.with_single_cert(certificates(&files.certificate)?, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Returns a verifier of client certificates: of an authority, and with a name if there is one.
fn client_verifier(ca: &Path, name: Option<&str>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates(ca)?);
    if added == 0 {
        return Err(TlsError::Empty(ca.to_owned()));
    }
    let usual = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let usual = usual.map_err(TlsError::Authority)?;
    let Some(name) = name else { return Ok(usual) };
    let name =
        ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ClientName(name.to_owned()))?;
    Ok(Arc::new(NamedClientVerifier { usual, name }))
}

/// Verifies client certificates as usual, and that they have a name.
#[derive(Debug)]
struct NamedClientVerifier {
    usual: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.usual.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Reads the certificates of a PEM file.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error| TlsError::Read { file: file.to_owned(), error };
    let text = fs::read(file).map_err(|error| unreadable(pem::Error::Io(error)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found.map_err(unreadable)? {
        none if none.is_empty() => Err(TlsError::Empty(file.to_owned())),
        found => Ok(found),
    }
}
