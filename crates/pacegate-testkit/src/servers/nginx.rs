use std::{fs, net::TcpStream, process::Command};

use tempfile::TempDir;

use super::{
    port::Port,
    process::{Process, tail},
    program,
};

/// An nginx process, which ends when it is dropped.
#[derive(Debug)]
pub struct Nginx {
    // Dropped before its directory.
    _process: Process,
    dir: TempDir,
    port: Port,
}

impl Nginx {
    /// Starts nginx. `http` returns the content of the `http` block, given the port to listen on:
    ///
    /// ```no_run
    /// use pacegate_testkit::servers::Nginx;
    ///
    /// let nginx = Nginx::start(|port| format!("server {{ listen 127.0.0.1:{port}; return 204; }}"));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if nothing listens on that port within ten seconds, with the end of its log.
    pub fn start(http: impl FnOnce(u16) -> String) -> Self {
        let dir = TempDir::with_prefix("pacegate-nginx-").expect("create a temporary directory");
        let port = Port::reserve();
        let config = config(&http(port.number()));
        fs::write(dir.path().join("conf"), config).expect("write to the temporary directory");
        let log = dir.path().join("log");
        let mut command = Command::new(program::find("nginx", "nginx/usr/sbin", "PACEGATE_NGINX"));
        // Without this, it would write to the log of the system's nginx before it has read the configuration.
        command.arg("-e").arg(&log).arg("-p").arg(dir.path()).args(["-c", "conf"]);
        let mut process = Process::start(&mut command, &log);
        process.wait_until("nginx", || TcpStream::connect(("127.0.0.1", port.number())).is_ok());
        Self { _process: process, dir, port }
    }

    /// Returns the port that it was given.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns the end of its error log.
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("log"))
    }
}

/// Returns the configuration: all files are in the temporary directory, and there is only one process, so
/// killing it leaves none behind.
fn config(http: &str) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {name};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid pid;\nerror_log log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n    access_log off;\n{temporary}{http}\n}}\n"
    )
}
