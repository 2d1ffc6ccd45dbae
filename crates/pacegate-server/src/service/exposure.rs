use crate::{config::Settings, listeners::exposed};

/// A listener that other machines can reach without TLS or API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} would listen on {address}, which others can reach, without {missing}")]
pub struct Exposed {
    name: &'static str,
    address: std::net::SocketAddr,
    missing: &'static str,
}

/// Rejects listeners that other machines can reach without TLS and API keys, unless the settings allow it.
pub(crate) fn check_exposure(settings: &Settings) -> Result<(), Exposed> {
    let (name, address, missing) = match exposed(settings).next() {
        Some(exposed) => exposed,
        None => return Ok(()),
    };
    Err(Exposed { name, address, missing })
}
