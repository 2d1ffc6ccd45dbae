//! The section `envoy.xds` of our file, and the same options as variables of envoyproxy/ratelimit.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, uri::Authority};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};

use super::{
    super::{
        file::shorten,
        proto::Struct,
        variables::{EnvironmentError, Result, Variables},
    },
    proto::ClientNode,
};
use crate::config::{beside, duration};

/// Config servers that send rules over xDS, instead of files of envoyproxy/ratelimit. Until one of them has sent rules,
/// each call of Envoy fails. A change takes effect after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXds")]
pub(crate) struct XdsOptions {
    /// The config servers, each as `HOST:PORT` (`CONFIG_GRPC_XDS_SERVER_URL`).
    #[serde(deserialize_with = "servers")]
    #[schemars(with = "Vec<String>", length(min = 1), example = ["envoy-gateway:18001"])]
    pub(super) servers: Vec<Authority>,

    /// The name of this client (`CONFIG_GRPC_XDS_NODE_ID`).
    #[serde(default = "default_node")]
    node: String,

    /// Metadata of this client (`CONFIG_GRPC_XDS_NODE_METADATA`).
    #[serde(default)]
    metadata: BTreeMap<String, String>,

    /// gRPC metadata of the streams (`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS`).
    #[serde(default, deserialize_with = "headers")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub(super) headers: HeaderMap,

    /// TLS to the config servers (`CONFIG_GRPC_XDS_SERVER_USE_TLS`). `{}` to trust the authorities of the system.
    #[serde(default)]
    #[schemars(with = "XdsTlsFiles")]
    pub(super) tls: Option<XdsTlsFiles>,

    /// The first delay before a new connection, from 1ms to 1h (`XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`).
    #[serde(default, deserialize_with = "delay")]
    #[schemars(with = "String", extend("default" = "100ms"))]
    min_delay: Option<Duration>,

    /// The maximum delay, which doubles each time, from 1ms to 1h (`XDS_CLIENT_BACKOFF_MAX_INTERVAL`).
    #[serde(default, deserialize_with = "delay")]
    #[schemars(with = "String", extend("default" = "800ms"))]
    max_delay: Option<Duration>,

    /// The maximum size of a configuration in bytes (`XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`).
    #[serde(default = "default_bytes")]
    pub(super) max_message_bytes: u32,

    /// Starts before a config server has answered (`FORCE_START_WITHOUT_INITIAL_CONFIG`).
    #[serde(default)]
    pub(super) start_without: bool,
}

/// Files in PEM form, which are read for each connection. Relative paths start at the directory of this file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXdsTls")]
pub(super) struct XdsTlsFiles {
    /// A certificate authority, beside those of the system (`CONFIG_GRPC_XDS_SERVER_TLS_CACERT`).
    #[schemars(with = "Option<String>")]
    pub(super) ca: Option<PathBuf>,

    /// The certificate of this client and its key (`CONFIG_GRPC_XDS_CLIENT_TLS_CERT`,
    /// `CONFIG_GRPC_XDS_CLIENT_TLS_KEY`).
    pub(super) client: Option<ClientIdentity>,

    /// The name in the certificate of the server (`CONFIG_GRPC_XDS_SERVER_TLS_SAN`). Default: its host.
    pub(super) server_name: Option<String>,
}

/// The certificate of this client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyXdsClient")]
pub(super) struct ClientIdentity {
    /// The certificate chain.
    #[schemars(with = "String")]
    pub(super) certificate: PathBuf,

    /// The private key of the certificate.
    #[schemars(with = "String")]
    pub(super) key: PathBuf,
}

/// The default delays before a new connection. A config server that comes back is found within a second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(800));
const DELAYS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3_600);

/// The default maximum size of a configuration.
const MAX_MESSAGE_BYTES: u32 = 64 << 20;

/// The port of an address without one, as in gRPC.
const DEFAULT_PORT: u16 = 443;

impl XdsOptions {
    pub(in crate::envoy) fn read<F: Fn(&str) -> Option<String>>(
        variables: &Variables<F>,
    ) -> Result<Self> {
        let min_delay = variables.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL")?;
        let metadata = variables.text_or_default("CONFIG_GRPC_XDS_NODE_METADATA");
        let headers = variables.text_or_default("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS");
        Ok(Self {
            servers: listed_servers(&variables.text_or_default("CONFIG_GRPC_XDS_SERVER_URL"))?,
            node: variables.text_or_default("CONFIG_GRPC_XDS_NODE_ID"),
            metadata: listed_metadata(&metadata),
            headers: listed_headers(&headers)?,
            tls: variables.xds_tls()?,
            // Without a delay, attempts to connect would never pause.
            min_delay: min_delay.filter(|delay| !delay.is_zero()),
            max_delay: variables.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL")?,
            max_message_bytes: variables.max_message_bytes()?,
            start_without: variables.switch("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
        })
    }

    /// Resolves the paths relative to the directory of `file`.
    pub(in crate::envoy) fn beside(mut self, file: &str) -> Self {
        if let Some(tls) = &mut self.tls {
            let client = tls.client.as_mut().map(|own| [&mut own.certificate, &mut own.key]);
            for path in tls.ca.iter_mut().chain(client.into_iter().flatten()) {
                *path = beside(file, &path);
            }
        }
        self
    }

    /// Returns the addresses of the config servers.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.servers.iter().map(Authority::as_str).collect();
        addresses.join(", ")
    }

    /// Returns the first and the maximum delay before a new connection.
    pub(super) fn backoff(&self) -> (Duration, Duration) {
        let min = self.min_delay.unwrap_or(BACKOFF.0);
        (min, self.max_delay.unwrap_or(BACKOFF.1).max(min))
    }

    /// Returns the name and the metadata of this client.
    pub(super) fn node(&self) -> ClientNode {
        let metadata = self.metadata.iter();
        let fields = metadata.map(|(name, value)| (name.clone(), (&**value).into())).collect();
        let metadata = (!self.metadata.is_empty()).then_some(Struct { fields });
        ClientNode { id: self.node.clone(), metadata }
    }
}

fn default_node() -> String {
    "default".to_owned()
}

fn default_bytes() -> u32 {
    MAX_MESSAGE_BYTES
}

fn servers<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Authority>, D::Error> {
    let list: Vec<String> = Deserialize::deserialize(list)?;
    let servers: Option<Vec<_>> = list.iter().map(|text| parse_server(text)).collect();
    let is_valid = |servers: &Vec<Authority>| {
        let is_new = |place: usize| !servers[..place].contains(&servers[place]);
        !servers.is_empty() && (0..servers.len()).all(is_new)
    };
    let problem = "invalid config servers: expected a list of HOST:PORT, each once";
    servers.filter(is_valid).ok_or_else(|| D::Error::custom(problem))
}

fn headers<'de, D: Deserializer<'de>>(map: D) -> Result<HeaderMap, D::Error> {
    let map: BTreeMap<String, String> = Deserialize::deserialize(map)?;
    let headers: Option<_> = map.iter().map(|(name, value)| header(name, value)).collect();
    let problem = "invalid header: expected a name and a value of printable characters";
    headers.ok_or_else(|| D::Error::custom(problem))
}

fn delay<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Duration>, D::Error> {
    let text: Option<String> = Deserialize::deserialize(text)?;
    text.map(|text| duration(&text, DELAYS)).transpose().map_err(D::Error::custom)
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
            client: client.map(|(certificate, key)| ClientIdentity { certificate, key }),
            server_name: self.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        }))
    }

    fn max_message_bytes(&self) -> Result<u32> {
        let name = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
        let bytes = self.text_or_default(name).parse().ok().filter(|bytes| *bytes > 0);
        bytes.ok_or_else(|| EnvironmentError::new(name, "is invalid: expected a number of bytes"))
    }
}

/// Parses addresses that are separated by commas.
fn listed_servers(list: &str) -> Result<Vec<Authority>> {
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
fn parse_server(text: &str) -> Option<Authority> {
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
fn listed_metadata(list: &str) -> BTreeMap<String, String> {
    let entries = list.split(',').filter_map(|entry| entry.split_once('='));
    entries.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}

/// Parses `name:value,name:value`.
fn listed_headers(list: &str) -> Result<HeaderMap> {
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
fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
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
        assert_eq!((&*options.addresses(), &*options.node), ("localhost:18000", "default"));
        assert!(options.node().metadata.is_none() && options.headers.is_empty());
        assert!(options.tls.is_none() && !options.start_without);
        assert_eq!(options.backoff(), BACKOFF);
        let options = read(&[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0")]).unwrap();
        assert_eq!(options.backoff(), BACKOFF);
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
        let metadata = options.node().metadata.unwrap();
        assert_eq!(metadata.fields.keys().collect::<Vec<_>>(), ["zone"]);
        assert_eq!(
            (&options.headers["x-token"], &options.headers["x-other"]),
            (&"secret".parse().unwrap(), &"b:c".parse().unwrap())
        );
        assert!(!format!("{options:?}").contains("secret"));
        let tls = options.tls.clone().unwrap();
        let client = tls.client.unwrap();
        assert_eq!(
            (client.certificate, client.key),
            ("/certs/tls.crt".into(), "/certs/tls.key".into())
        );
        assert_eq!(
            (tls.ca, tls.server_name.as_deref()),
            (Some("/certs/ca.crt".into()), Some("gateway"))
        );
        assert_eq!(options.backoff(), (Duration::from_secs(10), Duration::from_secs(10)));
        assert!(options.max_message_bytes == 1000 && options.start_without);
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

    fn parse(text: &str) -> Result<XdsOptions, String> {
        let options: Result<XdsOptions, _> = serde_saphyr::from_str(text);
        options
            .map(|options| options.beside("/etc/pacegate/pacegate.yaml"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_section_sets_the_same_options_as_variables() {
        let options = parse(
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
        assert_eq!(options.unwrap(), read(&variables).unwrap());
        assert_eq!(parse("servers: ['localhost:18000']").unwrap(), read(&[]).unwrap());
    }

    #[test]
    fn invalid_values_in_a_file_are_errors() {
        for (text, expected) in [
            ("servers: []", "expected a list of HOST:PORT"),
            ("servers: ['a:1', 'a:1']", "expected a list of HOST:PORT"),
            ("servers: ['http://a']", "expected a list of HOST:PORT"),
            ("{ servers: ['a:1'], headers: { 'a b': c } }", "invalid header"),
            ("{ servers: ['a:1'], min_delay: 0s }", "1ms"),
            ("node: me", "servers"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
