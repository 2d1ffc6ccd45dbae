//! The section `listen`: the addresses of the listeners.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use super::{Settings, hint::shorten, settings::Reader, spanned::At};
use crate::listeners::ListenSection;

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bind {
    /// The listener is off.
    Off,
    /// This address; port 0 is a free port.
    At(SocketAddr),
}

/// The reason why a listen address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid listen address `{0}`: expected HOST:PORT, such as `127.0.0.1:8080` for this machine only \
     or `0.0.0.0:8080` for all interfaces, or `off`"
)]
pub struct BindError(String);

impl Reader<'_, '_> {
    pub(super) fn listen(&mut self, section: &ListenSection, settings: &mut Settings) {
        for (listener, address) in section.addresses() {
            let Some(At { value, location, .. }) = address else { continue };
            if let Some(bind) = self.problems.take(*location, value.parse()) {
                settings.listen[listener] = bind;
            }
        }
        settings.hosts = section.hosts.iter().filter_map(|host| self.host(host)).collect();
    }

    fn host(&mut self, written: &At<String>) -> Option<String> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || "-_.:".contains(char);
        let text = written.value.trim_start_matches('[').trim_end_matches(']');
        let is_address = text.parse::<IpAddr>().is_ok();
        if text.is_empty() || !text.chars().all(is_part) || (text.contains(':') && !is_address) {
            let shown = shorten(&written.value);
            let message = format!(
                "invalid host `{shown}`: expected a name without a scheme and a port, such as `limits.example.com`"
            );
            self.problems.add(written.location, message);
            return None;
        }
        Some(text.trim_end_matches('.').to_ascii_lowercase())
    }
}

impl Bind {
    pub(crate) const fn loopback(port: u16) -> Self {
        Self::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for Bind {
    type Err = BindError;

    /// Parses `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080` or `off`. Names other than `localhost` are not resolved.
    /// The address is required, so that the server listens on all interfaces only if `0.0.0.0` is written out.
    fn from_str(text: &str) -> Result<Self, BindError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse::<SocketAddr>(),
            None => text.parse(),
        };
        address.map(Self::At).map_err(|_| BindError(shorten(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_need_a_host_and_a_port() {
        for (text, address) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:6380", "[::1]:6380"),
            ("0.0.0.0:80", "0.0.0.0:80"),
        ] {
            assert_eq!(text.parse(), Ok(Bind::At(address.parse().unwrap())));
        }
        assert_eq!("off".parse(), Ok(Bind::Off));
        for bad in ["", ":8080", "8080", "*:8080", "example.org:80", "127.0.0.1", "localhost:x"] {
            assert!(bad.parse::<Bind>().is_err(), "{bad}");
        }
    }
}
