//! The section `envoy.xds` of our file.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use http::{HeaderMap, uri::Authority};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    super::proto::{Struct, Value},
    options::{BACKOFF, MAX_MESSAGE_BYTES, XdsOptions, XdsTlsFiles, header, parse_server},
    proto::ClientNode,
};
use crate::config::{ValueError, beside, duration};

/// Config servers that send rules over xDS, instead of files of envoyproxy/ratelimit. Until one of them has sent rules,
/// each call of Envoy fails. A change takes effect after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXds")]
pub(crate) struct XdsSection {
    /// The config servers, each as `HOST:PORT` (`CONFIG_GRPC_XDS_SERVER_URL`).
    #[schemars(with = "Vec<String>", length(min = 1), example = ["envoy-gateway:18001"])]
    servers: ServerList,

    /// The name of this client (`CONFIG_GRPC_XDS_NODE_ID`).
    #[serde(default = "default_node")]
    node: String,

    /// Metadata of this client (`CONFIG_GRPC_XDS_NODE_METADATA`).
    #[serde(default)]
    metadata: BTreeMap<String, String>,

    /// gRPC metadata of the streams (`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS`).
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    headers: StreamHeaders,

    /// TLS to the config servers (`CONFIG_GRPC_XDS_SERVER_USE_TLS`). `{}` to trust the authorities of the system.
    #[serde(default)]
    #[schemars(with = "XdsTlsSection")]
    tls: Option<XdsTlsSection>,

    /// The first delay before a new connection, from 1ms to 1h (`XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`).
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "100ms"))]
    min_delay: Option<Delay>,

    /// The maximum delay, which doubles each time, from 1ms to 1h (`XDS_CLIENT_BACKOFF_MAX_INTERVAL`).
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "800ms"))]
    max_delay: Option<Delay>,

    /// The maximum size of a configuration in bytes (`XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`).
    #[serde(default = "default_bytes")]
    max_message_bytes: u32,

    /// Starts before a config server has answered (`FORCE_START_WITHOUT_INITIAL_CONFIG`).
    #[serde(default)]
    start_without: bool,
}

/// Files in PEM form, which are read for each connection. Relative paths start at the directory of this file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXdsTls")]
struct XdsTlsSection {
    /// A certificate authority, beside those of the system (`CONFIG_GRPC_XDS_SERVER_TLS_CACERT`).
    #[schemars(with = "Option<String>")]
    ca: Option<PathBuf>,

    /// The certificate of this client and its key (`CONFIG_GRPC_XDS_CLIENT_TLS_CERT`,
    /// `CONFIG_GRPC_XDS_CLIENT_TLS_KEY`).
    client: Option<ClientIdentity>,

    /// The name in the certificate of the server (`CONFIG_GRPC_XDS_SERVER_TLS_SAN`). Default: its host.
    server_name: Option<String>,
}

/// The certificate of this client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXdsClient")]
struct ClientIdentity {
    /// The certificate chain.
    #[schemars(with = "String")]
    certificate: PathBuf,

    /// The private key of the certificate.
    #[schemars(with = "String")]
    key: PathBuf,
}

/// At least one config server, each once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct ServerList(Vec<Authority>);

/// Headers. Their values may be secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
struct StreamHeaders(HeaderMap);

/// A delay before a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Delay(Duration);

/// An invalid value.
#[derive(Debug, thiserror::Error)]
enum SectionError {
    #[error("invalid config servers: expected a list of HOST:PORT, each once")]
    Servers,
    #[error("invalid header: expected a name and a value of printable characters")]
    Header,
}

const DELAYS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3_600);

impl XdsSection {
    /// Returns the options. Paths are relative to the directory of `file`.
    pub(crate) fn options(&self, file: &str) -> XdsOptions {
        let metadata = self.metadata.iter();
        let fields = metadata.map(|(name, value)| (name.clone(), Value::from(&**value))).collect();
        let metadata = (!self.metadata.is_empty()).then_some(Struct { fields });
        let initial = self.min_delay.map_or(BACKOFF.0, |delay| delay.0);
        let max = self.max_delay.map_or(BACKOFF.1, |delay| delay.0);
        XdsOptions {
            servers: self.servers.0.clone(),
            node: ClientNode { id: self.node.clone(), metadata },
            headers: self.headers.0.clone(),
            tls: self.tls.as_ref().map(|tls| XdsTlsFiles {
                ca: tls.ca.as_ref().map(|path| beside(file, path)),
                client: tls
                    .client
                    .as_ref()
                    .map(|own| (beside(file, &own.certificate), beside(file, &own.key))),
                server_name: tls.server_name.clone(),
            }),
            backoff: (initial, max.max(initial)),
            max_message_bytes: usize::try_from(self.max_message_bytes).unwrap_or(usize::MAX),
            starts_without: self.start_without,
        }
    }
}

fn default_node() -> String {
    "default".to_owned()
}

fn default_bytes() -> u32 {
    MAX_MESSAGE_BYTES
}

impl TryFrom<Vec<String>> for ServerList {
    type Error = SectionError;

    fn try_from(list: Vec<String>) -> Result<Self, SectionError> {
        let mut servers = Vec::new();
        for text in &list {
            let server = parse_server(text).ok_or(SectionError::Servers)?;
            if servers.contains(&server) {
                return Err(SectionError::Servers);
            }
            servers.push(server);
        }
        if servers.is_empty() { Err(SectionError::Servers) } else { Ok(Self(servers)) }
    }
}

impl TryFrom<BTreeMap<String, String>> for StreamHeaders {
    type Error = SectionError;

    fn try_from(map: BTreeMap<String, String>) -> Result<Self, SectionError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &map {
            let (name, value) = header(name, value).ok_or(SectionError::Header)?;
            headers.append(name, value);
        }
        Ok(Self(headers))
    }
}

impl TryFrom<String> for Delay {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        duration(&text, DELAYS).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::variables::Variables, *};

    fn read(text: &str) -> Result<XdsOptions, String> {
        let section: Result<XdsSection, _> = serde_saphyr::from_str(text);
        section
            .map(|section| section.options("/etc/pacegate/pacegate.yaml"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_section_sets_the_same_options_as_variables() {
        let options = read(
            "servers: ['a:1', '[::1]:2']
node: me
metadata: { zone: a }
headers: { x-token: secret }
tls: { ca: ca.crt, client: { certificate: /tls.crt, key: tls.key }, server_name: gateway }
min_delay: 1s
max_delay: 5s
max_message_bytes: 1000
start_without: true
",
        );
        let variables = [
            ("CONFIG_GRPC_XDS_SERVER_URL", "a:1,[::1]:2"),
            ("CONFIG_GRPC_XDS_NODE_ID", "me"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/etc/pacegate/ca.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/tls.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/etc/pacegate/tls.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "gateway"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1s"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "5s"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ];
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|it| it.1);
        let variables = Variables(|name: &str| value(name).map(str::to_owned));
        assert_eq!(options.unwrap(), XdsOptions::read(&variables).unwrap());
        let none = Variables(|_: &str| None);
        let default = XdsOptions::read(&none).unwrap();
        assert_eq!(read("servers: ['localhost:18000']").unwrap(), default);
    }

    #[test]
    fn invalid_values_are_errors() {
        for (text, expected) in [
            ("servers: []", "expected a list of HOST:PORT"),
            ("servers: ['a:1', 'a:1']", "expected a list of HOST:PORT"),
            ("servers: ['http://a']", "expected a list of HOST:PORT"),
            ("{ servers: ['a:1'], headers: { 'a b': c } }", "invalid header"),
            ("{ servers: ['a:1'], min_delay: 0s }", "1ms"),
            ("node: me", "servers"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
