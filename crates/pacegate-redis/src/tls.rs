//! TLS connections. The certificate of the server is always verified.

use std::{io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::environment::ByteStream;

/// TLS settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// CA certificates in PEM form, instead of those of the system.
    pub(crate) roots: Option<Vec<u8>>,
    /// Certificate and key of the client in PEM form.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Verifies certificates as usual, and also accepts a server whose certificate is one of the CA certificates: a
/// self-signed certificate is often marked as a CA, and webpki rejects a CA as the certificate of a server.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl Tls {
    /// Performs the handshake with the server of this name.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: Box<dyn ByteStream>,
    ) -> io::Result<TlsStream<Box<dyn ByteStream>>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(self.config()?)).connect(name, stream).await
    }

    fn config(&self) -> io::Result<ClientConfig> {
        let verifier = server_verifier(self.roots()?).map_err(io::Error::other)?;
        let builder =
            ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier);
        let Some((certificates, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
        builder.with_client_auth_cert(parse(certificates)?, key).map_err(io::Error::other)
    }

    fn roots(&self) -> io::Result<Vec<CertificateDer<'static>>> {
        match &self.roots {
            Some(pem) => parse(pem),
            // Certificates that cannot be read are left out.
            None => Ok(rustls_native_certs::load_native_certs().certs),
        }
    }
}

fn parse(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(io::Error::other)
}

/// Returns a verifier of servers for rustls. It also accepts a server whose certificate is one of the CA certificates.
///
/// # Errors
///
/// If none of the CA certificates can be used.
#[doc(hidden)]
pub fn server_verifier(
    roots: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    Ok(Arc::new(Verifier::new(roots)?))
}

impl Verifier {
    fn new(roots: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let usual = WebPkiServerVerifier::builder(Arc::new(store)).build();
        let usual = usual.map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { usual, roots })
    }
}

/// Returns true if a certificate was only rejected because it is marked as a CA. Its dates were checked before.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    other.0.downcast_ref::<webpki::Error>() == Some(&webpki::Error::CaUsedAsEndEntity)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.usual.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(error) if is_authority(&error) && self.roots.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
