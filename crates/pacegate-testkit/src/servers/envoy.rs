use std::{
    fmt::Write as _,
    fs,
    io::{self, Read, Write as _},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use super::{
    port::Port,
    process::{Process, tail},
    program,
};

/// An Envoy process, which ends when it is dropped.
#[derive(Debug)]
pub struct Envoy {
    // Dropped before its directory.
    _process: Process,
    dir: TempDir,
    port: Port,
    admin: Port,
}

/// Options of an Envoy that checks each HTTP request with a rate limit service.
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    upstream: String,
    service: String,
    domain: String,
    /// The entries of each descriptor: a key and the header with its value.
    descriptors: Vec<Vec<(String, String)>>,
    /// Entries of `rate_limits` in the configuration of the filter for the route, as YAML.
    filter_rate_limits: String,
    /// Metadata of each call: a name, and the header that has the value.
    metadata: Vec<(String, String)>,
    timeout: Duration,
    deny_on_failure: bool,
}

impl Envoy {
    /// Returns options for an Envoy in front of `upstream` that uses the rate limit service `service`, both
    /// as `host:port`, in the domain `pacegate`.
    pub fn options(upstream: &str, service: &str) -> EnvoyOptions {
        EnvoyOptions {
            upstream: upstream.to_owned(),
            service: service.to_owned(),
            domain: "pacegate".to_owned(),
            descriptors: Vec::new(),
            filter_rate_limits: String::new(),
            metadata: Vec::new(),
            timeout: Duration::from_secs(1),
            deny_on_failure: false,
        }
    }

    /// Starts an Envoy with a custom configuration, which gets the port to listen on and the port of its
    /// admin pages.
    ///
    /// # Panics
    ///
    /// Panics if it is not ready within ten seconds, with the end of its log.
    pub fn start(config: impl FnOnce(u16, u16) -> String) -> Self {
        let dir = TempDir::with_prefix("pacegate-envoy-").expect("create a temporary directory");
        let (port, admin) = (Port::reserve(), Port::reserve());
        let file = dir.path().join("envoy.yaml");
        fs::write(&file, config(port.number(), admin.number()))
            .expect("write to the temporary directory");
        let mut command = Command::new(program::find("envoy", "python/bin", "PACEGATE_ENVOY"));
        // Without hot restarts, two processes cannot conflict in shared memory.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.arg("-c").arg(file);
        let mut process = Process::start(&mut command, &dir.path().join("log"));
        process.wait_until("envoy", || is_live(admin.number()).unwrap_or(false));
        Self { _process: process, dir, port, admin }
    }

    /// Returns the port of its listener.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns `127.0.0.1:PORT` of its listener.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns `127.0.0.1:PORT` of its admin pages.
    pub fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.admin.number())
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("log"))
    }
}

impl EnvoyOptions {
    /// Sets the domain of its requests to the service.
    #[must_use]
    pub fn domain(mut self, domain: &str) -> Self {
        domain.clone_into(&mut self.domain);
        self
    }

    /// Adds a descriptor. Each entry is a key and the header with its value. Requests without one of the
    /// headers are sent to the service without this descriptor.
    #[must_use]
    pub fn descriptor(mut self, entries: &[(&str, &str)]) -> Self {
        let owned = entries.iter().map(|(key, header)| ((*key).to_owned(), (*header).to_owned()));
        self.descriptors.push(owned.collect());
        self
    }

    /// Adds entries of `rate_limits` to the filter's own configuration, as YAML in flow style with a comma after each.
    /// Only there does Envoy use `hits_addend` and `apply_on_stream_done`. Excludes [`EnvoyOptions::descriptor`].
    #[must_use]
    pub fn rate_limits(mut self, yaml: &str) -> Self {
        self.filter_rate_limits.push_str(yaml);
        self
    }

    /// Sends the value of a header with each call, as metadata of this name.
    #[must_use]
    pub fn metadata(mut self, name: &str, header: &str) -> Self {
        self.metadata.push((name.to_owned(), header.to_owned()));
        self
    }

    /// Sets the timeout of the service. Default: one second.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Responds with 500 if the service fails. By default, requests pass then.
    #[must_use]
    pub fn deny_on_failure(mut self) -> Self {
        self.deny_on_failure = true;
        self
    }

    /// Starts Envoy.
    ///
    /// # Panics
    ///
    /// Panics if it is not ready within ten seconds, with the end of its log.
    pub fn start(&self) -> Envoy {
        Envoy::start(|port, admin| self.config(port, admin))
    }

    fn config(&self, port: u16, admin: u16) -> String {
        let upstream = cluster("upstream", &self.upstream, "");
        let http2 = "\n    typed_extension_protocol_options:\
            \n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\
            \n        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\
            \n        explicit_http_config: { http2_protocol_options: {} }";
        let service = cluster("service", &self.service, http2);
        CONFIG
            .replace("@PORT", &port.to_string())
            .replace("@ADMIN", &admin.to_string())
            .replace("@DOMAIN", &format!("{:?}", self.domain))
            .replace(
                "@TIMEOUT",
                &format!("{}.{:09}s", self.timeout.as_secs(), self.timeout.subsec_nanos()),
            )
            .replace("@DENY", if self.deny_on_failure { "true" } else { "false" })
            .replace("@RATE_LIMITS", &self.rate_limits_of_route())
            .replace("@METADATA", &self.initial_metadata())
            .replace("@PER_FILTER", &self.per_filter())
            + &upstream
            + &service
    }

    /// Returns the configuration of the filter for the route.
    fn per_filter(&self) -> String {
        if self.filter_rate_limits.is_empty() {
            return "{}".to_owned();
        }
        let kind =
            "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
        let limits = &self.filter_rate_limits;
        format!(
            "{{ envoy.filters.http.ratelimit: {{ \"@type\": {kind}, rate_limits: [{limits}] }} }}"
        )
    }

    fn initial_metadata(&self) -> String {
        let entry = |(name, header): &(String, String)| {
            format!("{{ key: {name:?}, value: \"%REQ({header})%\" }}")
        };
        format!("[{}]", self.metadata.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    fn rate_limits_of_route(&self) -> String {
        let mut text = "[".to_owned();
        for entries in &self.descriptors {
            text.push_str("{ actions: [");
            for (key, header) in entries {
                let _ = write!(
                    text,
                    "{{ request_headers: {{ descriptor_key: {key:?}, header_name: {header:?} }} }}, "
                );
            }
            text.push_str("] }, ");
        }
        text + "]"
    }
}

/// Returns an entry of `clusters:`.
fn cluster(name: &str, address: &str, more: &str) -> String {
    let (host, port) = address.rsplit_once(':').expect("an address as host:port");
    format!(
        "  - name: {name}\n    type: STATIC\n    connect_timeout: 1s{more}\
         \n    load_assignment:\
         \n      cluster_name: {name}\
         \n      endpoints:\
         \n      - lb_endpoints:\
         \n        - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }}\n"
    )
}

fn is_live(admin: u16) -> io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("LIVE"))
}

const CONFIG: &str = r#"
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: @ADMIN } }
static_resources:
  listeners:
  - name: http
    address: { socket_address: { address: 127.0.0.1, port_value: @PORT } }
    enable_reuse_port: false
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route: { cluster: upstream, rate_limits: @RATE_LIMITS }
                typed_per_filter_config: @PER_FILTER
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: @DOMAIN
              timeout: @TIMEOUT
              failure_mode_deny: @DENY
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service:
                  envoy_grpc: { cluster_name: service }
                  timeout: @TIMEOUT
                  initial_metadata: @METADATA
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
"#;
