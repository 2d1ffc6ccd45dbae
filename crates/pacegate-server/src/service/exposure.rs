use crate::config::{Bind, Security, Settings};

/// What a listener lacks that others can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} would listen on {address}, which others can reach, without {missing}")]
pub struct Exposed {
    name: &'static str,
    address: std::net::SocketAddr,
    missing: &'static str,
}

/// Refuses to listen where others can reach it without certificates and credentials, unless that is wanted.
pub(crate) fn check_exposure(settings: &Settings) -> Result<(), Exposed> {
    let Settings { http, grpc, resp, security, .. } = settings;
    for (name, bind) in [("http", http), ("grpc", grpc), ("resp", resp)] {
        if let Bind::At(address) = *bind
            && !address.ip().to_canonical().is_loopback()
            && let Some(missing) = missing(security, name)
        {
            return Err(Exposed { name, address, missing });
        }
    }
    Ok(())
}

/// What a listener that others can reach lacks.
pub(crate) fn missing(security: &Security, listener: &str) -> Option<&'static str> {
    let tls = security.tls_of(listener);
    let has_clients = tls.is_some_and(|tls| tls.client_ca.is_some());
    match (tls, has_clients || !security.credentials.is_empty()) {
        _ if security.insecure => None,
        (Some(_), true) => None,
        (None, false) => Some("certificates (tls) and API keys (keys)"),
        (None, true) => Some("certificates (tls)"),
        (Some(_), false) => Some("API keys (keys) or the clients' authority (tls.client_ca)"),
    }
}
