//! The sections `tls` and `keys`.

use std::{fmt, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    environment::beside,
    hint::shorten,
    settings::{Reader, or_default},
    spanned::At,
};
use crate::listeners::ListenerId;

/// Files in PEM form. The server reloads them when they change. Relative paths start at the directory of this file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tls")]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate chain, starting with the server's own certificate.
    #[schemars(with = "String", example = "/etc/pacegate/tls.crt")]
    pub certificate: PathBuf,

    /// The private key of the certificate.
    #[schemars(with = "String", example = "/etc/pacegate/tls.key")]
    pub key: PathBuf,

    /// The certificate authority for client certificates. Without it, clients need no certificate.
    #[schemars(with = "Option<String>")]
    pub client_ca: Option<PathBuf>,

    /// The host name or address that client certificates need. Default: certificates with any name are accepted.
    /// Requires `client_ca`.
    pub client_name: Option<String>,
}

/// An API key. This file never contains the key itself, only its hash or its location.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Key")]
pub(crate) struct KeySection {
    /// The name of the API key, for logs.
    #[schemars(example = &"checkout")]
    name: At<String>,

    /// The SHA-256 of the key, as 64 hexadecimal digits: `printf %s "$KEY" | sha256sum`.
    #[schemars(regex(pattern = "^[0-9A-Fa-f]{64}$"))]
    sha256: Option<At<String>>,

    /// A file that contains only the key, of at least 16 bytes. A relative path starts at the directory of this file.
    #[schemars(example = "/run/secrets/checkout-key")]
    file: Option<At<String>>,

    /// The environment variable that contains the key, of at least 16 bytes.
    #[schemars(example = &"CHECKOUT_KEY")]
    env: Option<At<String>>,

    /// The permissions of the API key.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(extend("default" = "check"))]
    scope: Scope,

    /// The domains that the key is valid for. Default: all domains.
    domains: Option<At<Vec<String>>>,

    /// Allows inline limits: a `key` with its own `limit`, `CL.THROTTLE`, and the `limit` of an Envoy descriptor. The
    /// scope `admin` does not include it. Over HTTP and RESP, inline limits have no domain, so `domains` must be left
    /// out or contain `""`.
    #[serde(default)]
    inline: bool,
}

/// The permissions of an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scope {
    /// Checks, peeks, acquire and release.
    #[default]
    Check,
    /// Also resets, refunds, blocks, reloads, and reports about all keys.
    Admin,
}

/// TLS and API keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Security {
    /// The certificate of the server, and the certificate authority of its clients.
    pub tls: Option<TlsFiles>,
    /// Overrides `tls` for the gRPC listener.
    pub grpc_tls: Option<TlsFiles>,
    /// API keys. Empty means no authentication.
    pub credentials: Vec<Credential>,
    /// Allows public addresses without TLS and API keys, for networks that are protected otherwise.
    pub insecure: bool,
}

/// An API key, stored as a hash.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// For logs.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// Its permissions.
    pub scope: Scope,
    /// The domains that it is valid for; `None` for all.
    pub domains: Option<Vec<String>>,
    /// True if it allows inline limits.
    pub inline: bool,
}

/// The reason why a hash is invalid. It does not quote the text, because it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum HashError {
    #[error(
        "invalid SHA-256: expected the 64 hexadecimal digits of `printf %s \"$KEY\" | sha256sum`"
    )]
    Digits,
    #[error("this is the SHA-256 of an empty key, which is not allowed: was `$KEY` empty?")]
    EmptyKey,
}

/// Minimum length of an API key in bytes. Shorter ones could be guessed.
pub(super) const MIN_API_KEY: usize = 16;

impl Reader<'_, '_> {
    pub(super) fn credentials(&mut self, keys: &[At<KeySection>]) -> Vec<Credential> {
        let mut credentials: Vec<Credential> = Vec::new();
        for section in keys {
            let Some(credential) = self.credential(section) else { continue };
            let same = credentials.iter().find(|other| {
                other.name == credential.name
                    || (self.environment.secrets && other.sha256 == credential.sha256)
            });
            if let Some(same) = same {
                let same = shorten(&same.name);
                let message =
                    format!("same name or secret as the API key `{same}`: each key needs its own");
                self.problems.add(section.value.name.location, message);
            }
            credentials.push(credential);
        }
        credentials
    }

    fn credential(&mut self, section: &At<KeySection>) -> Option<Credential> {
        let KeySection { name, scope, domains, inline, .. } = &section.value;
        if name.value.is_empty() || name.value.len() > 64 {
            self.problems.add(name.location, "invalid name of an API key: expected 1 to 64 bytes");
            return None;
        }
        if let Some(domains) = domains.as_ref().filter(|domains| domains.value.is_empty()) {
            let message = "empty `domains`: list at least one, or remove the field to allow all";
            self.problems.add(domains.location, message);
        }
        Some(Credential {
            name: name.value.clone(),
            sha256: self.hash(section)?,
            scope: *scope,
            domains: domains.as_ref().map(|domains| domains.value.clone()),
            inline: *inline,
        })
    }

    fn hash(&mut self, section: &At<KeySection>) -> Option<[u8; 32]> {
        let KeySection { sha256, file, env, .. } = &section.value;
        let (location, secret) = match (sha256, file, env) {
            (Some(hash), None, None) => {
                return self.problems.take(hash.location, parse_hash(&hash.value));
            }
            (None, Some(path), None) => {
                (path.location, self.environment.file(&beside(self.file, &path.value)))
            }
            (None, None, Some(name)) => (name.location, self.environment.variable(&name.value)),
            _ => {
                let message = "an API key needs exactly one of `sha256`, `file` and `env`";
                self.problems.add(section.location, message);
                return None;
            }
        };
        let secret = self.problems.take(location, secret)?;
        if let Some(length) = secret.as_ref().map(Vec::len).filter(|length| *length < MIN_API_KEY) {
            let message = format!(
                "the API key has {length} bytes: use at least {MIN_API_KEY}, such as the output of \
                 `openssl rand -hex 32`"
            );
            self.problems.add(location, message);
            return None;
        }
        Some(secret.map_or([0; 32], |secret| Sha256::digest(secret).into()))
    }
}

fn parse_hash(text: &str) -> Result<[u8; 32], HashError> {
    let digits: Option<Vec<u32>> = text.chars().map(|char| char.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 64).ok_or(HashError::Digits)?;
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(pair[0] * 16 + pair[1]).map_err(|_| HashError::Digits)?;
    }
    if hash == *Sha256::digest(b"") { Err(HashError::EmptyKey) } else { Ok(hash) }
}

impl TlsFiles {
    /// Resolves the paths relative to the directory of the file `from`.
    pub(crate) fn beside(&self, from: &str) -> Self {
        Self {
            certificate: beside(from, &self.certificate),
            key: beside(from, &self.key),
            client_ca: self.client_ca.as_ref().map(|path| beside(from, path)),
            client_name: self.client_name.clone(),
        }
    }
}

impl Security {
    /// Returns the certificate files of a listener.
    pub(crate) fn tls_of(&self, listener: ListenerId) -> Option<&TlsFiles> {
        let own = self.grpc_tls.as_ref().filter(|_| listener == ListenerId::Grpc);
        own.or(self.tls.as_ref())
    }

    /// Returns what a listener lacks to be reachable from other machines.
    pub(crate) fn missing(&self, listener: ListenerId) -> Option<&'static str> {
        let tls = self.tls_of(listener);
        let has_clients = tls.is_some_and(|tls| tls.client_ca.is_some());
        match (tls, has_clients || !self.credentials.is_empty()) {
            _ if self.insecure => None,
            (Some(_), true) => None,
            (None, false) => Some("certificates (tls) and API keys (keys)"),
            (None, true) => Some("certificates (tls)"),
            (Some(_), false) => Some("API keys (keys) or the clients' authority (tls.client_ca)"),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, scope, domains, .. } = self;
        f.debug_struct("Credential")
            .field("name", name)
            .field("scope", scope)
            .field("domains", domains)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_64_digits() {
        let text = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
        assert_eq!(parse_hash(text).unwrap()[31], 0x1f);
        for bad in ["", &text[1..], &format!("{text}0"), &text.replace('0', "g")] {
            assert!(!parse_hash(bad).unwrap_err().to_string().contains("0b0c"));
        }
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(parse_hash(of_nothing), Err(HashError::EmptyKey));
    }
}
