//! The variables of envoyproxy/ratelimit for xDS.

use std::{path::PathBuf, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, uri::Authority};

use super::{
    super::{
        file::shorten,
        proto::{Struct, Value},
        variables::{EnvironmentError, Result, Variables},
    },
    proto::ClientNode,
};

/// The config servers, and the way to connect to them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct XdsOptions {
    /// At least one.
    pub(super) servers: Vec<Authority>,
    pub(super) node: ClientNode,
    /// Metadata of the streams.
    pub(super) headers: HeaderMap,
    pub(super) tls: Option<XdsTlsFiles>,
    /// The first and the maximum delay before a new connection.
    pub(super) backoff: (Duration, Duration),
    pub(super) max_message_bytes: usize,
    /// True if the server starts before the first configuration.
    pub(super) starts_without: bool,
}

/// Certificates for connections to config servers. Each connection reads the files again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct XdsTlsFiles {
    /// Added to the authorities that the system trusts.
    pub(super) ca: Option<PathBuf>,
    /// Certificate and key of this client.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    /// The name in the certificate of the server. `None`: the host of its address.
    pub(super) server_name: Option<String>,
}

/// The default delays before a new connection. A config server that comes back is found within a second.
pub(super) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(800));
/// The default maximum size of a configuration.
pub(super) const MAX_MESSAGE_BYTES: u32 = 64 << 20;
/// The port of an address without one, as in gRPC.
const DEFAULT_PORT: u16 = 443;

impl XdsOptions {
    pub(in crate::envoy) fn read<F: Fn(&str) -> Option<String>>(
        variables: &Variables<F>,
    ) -> Result<Self> {
        let initial = variables.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL")?;
        let max = variables.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL")?;
        // Without a delay, attempts to connect would never pause.
        let initial = initial.filter(|initial| !initial.is_zero()).unwrap_or(BACKOFF.0);
        Ok(Self {
            servers: servers(&variables.text_or_default("CONFIG_GRPC_XDS_SERVER_URL"))?,
            node: ClientNode {
                id: variables.text_or_default("CONFIG_GRPC_XDS_NODE_ID"),
                metadata: metadata(&variables.text_or_default("CONFIG_GRPC_XDS_NODE_METADATA")),
            },
            headers: headers(
                &variables.text_or_default("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
            )?,
            tls: variables.xds_tls()?,
            backoff: (initial, max.unwrap_or(BACKOFF.1).max(initial)),
            max_message_bytes: variables.max_message_bytes()?,
            starts_without: variables.switch("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
        })
    }

    /// Returns the number of config servers.
    pub(crate) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Returns the addresses of the config servers.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.servers.iter().map(Authority::as_str).collect();
        addresses.join(", ")
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn xds_tls(&self) -> Result<Option<XdsTlsFiles>> {
        if !self.switch("CONFIG_GRPC_XDS_SERVER_USE_TLS")? {
            return Ok(None);
        }
        let file = |name| self.text(name).map(PathBuf::from);
        let client =
            file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT").zip(file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"));
        Ok(Some(XdsTlsFiles {
            ca: file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
            client,
            server_name: self.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        }))
    }

    fn max_message_bytes(&self) -> Result<usize> {
        let name = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
        let bytes = self.text_or_default(name).parse().ok().filter(|bytes| *bytes > 0);
        bytes.ok_or_else(|| EnvironmentError::new(name, "is invalid: expected a number of bytes"))
    }
}

/// Parses addresses that are separated by commas.
fn servers(list: &str) -> Result<Vec<Authority>> {
    let name = "CONFIG_GRPC_XDS_SERVER_URL";
    let mut servers: Vec<Authority> = Vec::new();
    for text in list.split(',').map(str::trim) {
        let server = parse_server(text).ok_or_else(|| {
            let problem = format!(
                "has `{}`: expected host:port, or several of them separated by commas",
                shorten(text, 80)
            );
            EnvironmentError::new(name, problem)
        })?;
        if servers.contains(&server) {
            return Err(EnvironmentError::new(name, format!("has `{server}` twice")));
        }
        servers.push(server);
    }
    Ok(servers)
}

/// Parses the address of a config server.
pub(super) fn parse_server(text: &str) -> Option<Authority> {
    let address = text.strip_prefix("dns:///").unwrap_or(text);
    address.parse().ok().filter(|it: &Authority| {
        let has_port = it.port_u16().is_some() || it.as_str() == it.host();
        has_port && !it.host().is_empty() && !it.as_str().contains('@')
    })
}

/// Returns the host, without brackets, and the port of a config server.
pub(super) fn host_and_port(server: &Authority) -> (&str, u16) {
    let host = server.host().trim_start_matches('[').trim_end_matches(']');
    (host, server.port_u16().unwrap_or(DEFAULT_PORT))
}

/// Parses `key=value,key=value`. Other entries are ignored, as envoyproxy/ratelimit does.
fn metadata(list: &str) -> Option<Struct> {
    let entries = list.split(',').filter_map(|entry| entry.split_once('='));
    let fields = entries.map(|(key, value)| (key.trim().to_owned(), Value::from(value.trim())));
    Some(Struct { fields: fields.collect() }).filter(|metadata| !metadata.fields.is_empty())
}

/// Parses `name:value,name:value`.
fn headers(list: &str) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let header = entry.split_once(':').and_then(|(name, value)| header(name, value));
        let (name, value) = header.ok_or_else(|| {
            let problem = "is invalid: expected name:value, or several of them separated by commas";
            EnvironmentError::new("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", problem)
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Parses a header. Its value may be a secret.
pub(super) fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<XdsOptions> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        XdsOptions::read(&Variables(|name: &str| find(name).map(|(_, value)| (*value).to_owned())))
    }

    fn addresses(list: &str) -> String {
        let options = read(&[("CONFIG_GRPC_XDS_SERVER_URL", list)]);
        options.map_or_else(|error| error.to_string(), |options| options.addresses())
    }

    #[test]
    fn defaults_are_those_of_envoyproxy_ratelimit_except_for_delays_and_sizes() {
        let options = read(&[]).unwrap();
        assert_eq!((&*options.addresses(), &*options.node.id), ("localhost:18000", "default"));
        assert!(options.node.metadata.is_none() && options.headers.is_empty());
        assert!(options.tls.is_none() && !options.starts_without);
        assert_eq!(options.backoff, BACKOFF);
        let options = read(&[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0")]).unwrap();
        assert_eq!(options.backoff, BACKOFF);
        assert_eq!(options.max_message_bytes, 64 << 20);
    }

    #[test]
    fn variables_are_read() {
        let options = read(&[
            ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///a:1, [::1]:2,c"),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,ignored:x"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret,x-other:b:c"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "gateway"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ])
        .unwrap();
        assert_eq!(options.addresses(), "a:1, [::1]:2, c");
        let hosts: Vec<_> = options.servers.iter().map(host_and_port).collect();
        assert_eq!(hosts, [("a", 1), ("::1", 2), ("c", 443)]);
        let metadata = options.node.metadata.as_ref().unwrap();
        assert_eq!(metadata.fields.keys().collect::<Vec<_>>(), ["zone"]);
        assert_eq!(
            (&options.headers["x-token"], &options.headers["x-other"]),
            (&"secret".parse().unwrap(), &"b:c".parse().unwrap())
        );
        assert!(!format!("{options:?}").contains("secret"));
        let tls = options.tls.unwrap();
        assert_eq!(tls.client, Some(("/certs/tls.crt".into(), "/certs/tls.key".into())));
        assert_eq!(
            (tls.ca, tls.server_name.as_deref()),
            (Some("/certs/ca.crt".into()), Some("gateway"))
        );
        assert_eq!(options.backoff, (Duration::from_secs(10), Duration::from_secs(10)));
        assert!(options.max_message_bytes == 1000 && options.starts_without);
    }

    #[test]
    fn invalid_variables_are_errors() {
        let expected = "expected host:port, or several of them separated by commas";
        for text in ["", "a:port", "a:1,", "http://a:1", "user@a:1", "unix:/run/x.sock"] {
            let error = addresses(if text.is_empty() { "," } else { text });
            assert!(error.ends_with(expected), "{text}: {error}");
        }
        assert_eq!(addresses("a:1,a:1"), "CONFIG_GRPC_XDS_SERVER_URL has `a:1` twice");
        for (name, value) in [
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "secret"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "soon"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "yes"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is invalid: expected")), "{error}");
            assert!(!error.contains("secret"));
        }
    }
}
