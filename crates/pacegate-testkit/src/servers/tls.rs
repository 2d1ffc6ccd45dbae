use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use tempfile::TempDir;

/// A private CA with a certificate for servers at `localhost` and 127.0.0.1 and one for clients, as files.
/// Clones share the files, which are deleted with the last clone.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: Arc<TempDir>,
}

impl Certificates {
    /// Creates a new CA.
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("pacegate-tls-").expect("create a temporary directory");
        let issuer = authority(&dir.path().join("ca.pem"));
        let all = Self { dir: Arc::new(dir) };
        // The server certificate is also valid for clients: replicas and cluster nodes present it to each
        // other.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        issue(&issuer, "server", &both, (&all.server_cert(), &all.server_key()));
        issue(&issuer, "client", &both[1..], (&all.client_cert(), &all.client_key()));
        all
    }

    /// Creates a self-signed server certificate that is marked as a CA and is its own CA, as `openssl req -x509` does.
    /// There is none for clients.
    pub fn self_signed() -> Self {
        let dir = TempDir::with_prefix("pacegate-tls-").expect("create a temporary directory");
        let all = Self { dir: Arc::new(dir) };
        let mut params = named("localhost");
        params.subject_alt_names = localhost();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("valid parameters").pem();
        for file in [all.ca(), all.server_cert()] {
            fs::write(file, &certificate).expect("write to the temporary directory");
        }
        fs::write(all.server_key(), key.serialize_pem()).expect("write to the temporary directory");
        all
    }

    /// Returns the file with the CA certificate.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Returns the text of the CA certificate.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.ca()).expect("read from the temporary directory")
    }

    /// Returns the file with the server certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.file("server.pem")
    }

    /// Returns the file with the server key.
    pub fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// Returns the file with the client certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.file("client.pem")
    }

    /// Returns the file with the client key.
    pub fn client_key(&self) -> PathBuf {
        self.file("client.key")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

fn authority(file: &Path) -> Issuer<'static, KeyPair> {
    let mut params = named("Pacegate test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("valid parameters");
    fs::write(file, certificate.pem()).expect("write to the temporary directory");
    Issuer::new(params, key)
}

fn issue(
    issuer: &Issuer<'static, KeyPair>,
    name: &str,
    usages: &[ExtendedKeyUsagePurpose],
    (cert_file, key_file): (&Path, &Path),
) {
    let mut params = named(name);
    params.subject_alt_names = localhost();
    params.extended_key_usages = usages.to_vec();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("valid parameters");
    fs::write(cert_file, certificate.pem()).expect("write to the temporary directory");
    fs::write(key_file, key.serialize_pem()).expect("write to the temporary directory");
}

fn localhost() -> Vec<SanType> {
    vec![
        SanType::DnsName("localhost".try_into().expect("a host name")),
        SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    ]
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
