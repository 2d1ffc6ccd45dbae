//! A running service.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
};

use tempfile::NamedTempFile;

/// A running `pacegate serve`, after it has printed its addresses.
pub(crate) struct Service {
    child: Child,
    /// The lines that it printed.
    pub(crate) greeting: Vec<String>,
    /// Its log: a file, so that lines written before an answer can be read after it.
    log: NamedTempFile,
}

impl Service {
    /// Starts it on free ports of the loopback address. Panics with its output if it does not start.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// [`Service::start`] with environment variables.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
        command.arg("serve");
        for listener in ["--http", "--grpc", "--resp"] {
            if !args.contains(&listener) {
                command.args([listener, "127.0.0.1:0"]);
            }
        }
        Self::launch(command.args(args).envs(variables.iter().copied()))
    }

    /// [`Service::start`] with a prepared command.
    pub(crate) fn launch(command: &mut Command) -> Self {
        let log = NamedTempFile::new().unwrap();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut service = Self { child, greeting: Vec::new(), log };
        for line in lines {
            service.greeting.push(line.unwrap());
            if service.greeting.last().is_some_and(|line| line.starts_with("ready")) {
                return service;
            }
        }
        let (status, log) = service.wait();
        panic!("it did not start: {status:?} {log}");
    }

    /// Returns the address of a listener: `http`, `grpc` or `resp`.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        let prefix = format!("{name} listens on ");
        let line = self.greeting.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap();
        let address = line.rsplit('/').next().unwrap().split(' ').next().unwrap();
        address.parse().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end. Returns the exit status and the log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.log())
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
