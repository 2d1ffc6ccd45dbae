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

/// An authority of its own, with a certificate for servers at `localhost` and 127.0.0.1 and one for clients, as files.
/// A clone is the same; the files go when the last clone does.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: Arc<TempDir>,
}

impl Certificates {
    /// Makes a new authority, which nobody trusts yet.
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("pacegate-tls-").expect("a temporary directory");
        let issuer = authority(&dir.path().join("ca.pem"));
        let all = Self { dir: Arc::new(dir) };
        // The server's is for clients as well: replicas and cluster nodes show it to each other.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        issue(&issuer, "server", &both, (&all.server_cert(), &all.server_key()));
        issue(&issuer, "client", &both[1..], (&all.client_cert(), &all.client_key()));
        all
    }

    /// The file with the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The text of the authority's certificate.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.ca()).expect("a file of ours")
    }

    /// The file with the server's certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.file("server.pem")
    }

    /// The file with the server's key.
    pub fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// The file with the client's certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.file("client.pem")
    }

    /// The file with the client's key.
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
    fs::write(file, certificate.pem()).expect("a directory of ours");
    Issuer::new(params, key)
}

fn issue(
    issuer: &Issuer<'static, KeyPair>,
    name: &str,
    usages: &[ExtendedKeyUsagePurpose],
    (cert_file, key_file): (&Path, &Path),
) {
    let mut params = named(name);
    params.subject_alt_names = vec![
        SanType::DnsName("localhost".try_into().expect("a host name")),
        SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    ];
    params.extended_key_usages = usages.to_vec();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("valid parameters");
    fs::write(cert_file, certificate.pem()).expect("a directory of ours");
    fs::write(key_file, key.serialize_pem()).expect("a directory of ours");
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
