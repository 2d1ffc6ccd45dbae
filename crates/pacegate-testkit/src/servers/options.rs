use std::{fmt::Write, path::Path};

use super::{Certificates, Flavor, Server};

/// Options of a server. By default it listens on 127.0.0.1, requires no password and stores nothing on disk.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerOptions {
    pub(super) flavor: Flavor,
    pub(super) cluster: bool,
    pub(super) sentinel: bool,
    unix_socket: bool,
    password: Option<String>,
    /// True if the test kit's connections have to authenticate.
    pub(super) guarded: bool,
    tls: Option<Certificates>,
    directives: Vec<(String, String)>,
}

/// User of the test kit's connections, so that no password and no ACL locks it out.
pub(super) const OWN_USER: &str = "testkit";

impl ServerOptions {
    pub(super) fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            cluster: false,
            sentinel: false,
            unix_socket: false,
            password: None,
            guarded: false,
            tls: None,
            directives: Vec::new(),
        }
    }

    /// Adds a line to the configuration file, after those of the test kit: `.arg("maxmemory", "8mb")`.
    pub fn arg(mut self, directive: &str, value: &str) -> Self {
        self.directives.push((directive.to_owned(), value.to_owned()));
        self
    }

    /// Starts as a replica of another server.
    pub fn replica_of(self, master: &Server) -> Self {
        self.arg("replicaof", &format!("127.0.0.1 {}", master.port()))
    }

    /// Uses only TLS on its port. Clients may present a certificate of the same CA; `.arg("tls-auth-clients",
    /// "yes")` requires one.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = Some(certificates.clone());
        self
    }

    /// Makes [`Server::url`] return the Unix socket. The port stays open.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Requires this password from clients, and uses it for the master if there is one.
    pub fn password(mut self, password: &str) -> Self {
        (self.password, self.guarded) = (Some(password.to_owned()), true);
        self.arg("requirepass", password).arg("masterauth", password)
    }

    /// Adds a user: `.acl("alice on >secret ~* +@all")`.
    pub fn acl(mut self, line: &str) -> Self {
        self.guarded = true;
        self.arg("user", line)
    }

    /// Makes it a cluster node, initially without slots. See [`Cluster`](super::Cluster).
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server and waits until it responds.
    ///
    /// # Panics
    ///
    /// Panics if it does not respond within ten seconds, with the end of its log.
    pub fn start(self) -> Server {
        Server::launch(self)
    }

    pub(super) fn url(&self, port: u16, socket: &Path) -> String {
        if self.unix_socket {
            return format!("redis+unix://{}", socket.display());
        }
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let password = self.password.as_ref().map(|word| format!(":{word}@"));
        format!("{scheme}://{}127.0.0.1:{port}", password.unwrap_or_default())
    }

    /// Returns the configuration file.
    pub(super) fn config(&self, dir: &Path, port: u16, bus: Option<u16>) -> String {
        let mut text = String::new();
        let mut line = |directive: &str, value: &str| {
            let value = if value.is_empty() { "\"\"" } else { value };
            writeln!(text, "{directive} {value}").expect("write to a String");
        };
        let port = port.to_string();
        line("bind", "127.0.0.1");
        line("dir", &dir.display().to_string());
        line("unixsocket", &dir.join("socket").display().to_string());
        if !self.sentinel {
            line("save", "");
            line("appendonly", "no");
            // By default, a master waits five seconds for more replicas before it syncs.
            line("repl-diskless-sync-delay", "0");
        }
        match &self.tls {
            None => line("port", &port),
            Some(certificates) => {
                line("port", "0");
                line("tls-port", &port);
                line("tls-replication", "yes");
                line("tls-auth-clients", "optional");
                line("tls-ca-cert-file", &certificates.ca().display().to_string());
                line("tls-cert-file", &certificates.server_cert().display().to_string());
                line("tls-key-file", &certificates.server_key().display().to_string());
            }
        }
        if let Some(bus) = bus {
            line("cluster-enabled", "yes");
            line("cluster-config-file", "nodes.conf");
            line("cluster-node-timeout", "2000");
            line("cluster-port", &bus.to_string());
            line("tls-cluster", if self.tls.is_some() { "yes" } else { "no" });
        }
        if self.guarded {
            line("user", &format!("{OWN_USER} on nopass ~* &* +@all"));
        }
        self.directives.iter().for_each(|(directive, value)| line(directive, value));
        text
    }
}
