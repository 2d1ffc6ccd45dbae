use std::{fs, net::TcpStream, process::Command};

use tempfile::TempDir;

use super::{
    port::Port,
    process::{Process, tail},
    program,
};

/// An nginx of its own, until it is dropped.
#[derive(Debug)]
pub struct Nginx {
    // Ends before its directory does.
    _process: Process,
    dir: TempDir,
    port: Port,
}

impl Nginx {
    /// Starts one with what `http` writes into the block of that name, given the port to listen on:
    ///
    /// ```no_run
    /// use pacegate_testkit::servers::Nginx;
    ///
    /// let nginx = Nginx::start(|port| format!("server {{ listen 127.0.0.1:{port}; return 204; }}"));
    /// ```
    ///
    /// # Panics
    ///
    /// If nobody listens on that port within ten seconds, with the end of its log.
    pub fn start(http: impl FnOnce(u16) -> String) -> Self {
        let dir = TempDir::with_prefix("pacegate-nginx-").expect("a temporary directory");
        let port = Port::reserve();
        let config = config(&http(port.number()));
        fs::write(dir.path().join("conf"), config).expect("a directory of ours");
        let log = dir.path().join("log");
        let mut command = Command::new(program::find("nginx", "nginx/usr/sbin", "PACEGATE_NGINX"));
        // What it would else write to before it has read the configuration belongs to the system's nginx.
        command.arg("-e").arg(&log).arg("-p").arg(dir.path()).args(["-c", "conf"]);
        let mut process = Process::start(&mut command, &log);
        process.wait_until("nginx", || TcpStream::connect(("127.0.0.1", port.number())).is_ok());
        Self { _process: process, dir, port }
    }

    /// The port it was given.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The end of its log of errors.
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("log"))
    }
}

/// All files are in the directory that it is started with, and it is one process: who ends it leaves none behind.
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
