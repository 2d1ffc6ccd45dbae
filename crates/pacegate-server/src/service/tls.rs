use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
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
        let TlsFiles { certificate, key, client_ca } = &self.files;
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
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates(file)?);
            if added == 0 {
                return Err(TlsError::Empty(file.clone()));
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.map_err(TlsError::Authority)?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::Read { file: files.key.clone(), error })?;
    let mut config =
        builder.with_single_cert(certificates(&files.certificate)?, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
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
