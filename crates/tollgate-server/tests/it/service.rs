//! A running service.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    thread::JoinHandle,
};

/// `tollgate serve`, which has said where it listens.
pub(crate) struct Service {
    child: Child,
    /// What it said, line by line.
    pub(crate) greeting: Vec<String>,
    errors: Option<JoinHandle<String>>,
}

impl Service {
    /// Starts it on free ports of the loopback. Panics if it does not come up, with what it said.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// [`Service::start`] with variables in its environment.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("serve");
        for listener in ["--http", "--grpc", "--resp"] {
            if !args.contains(&listener) {
                command.args([listener, "127.0.0.1:0"]);
            }
        }
        let mut child = command
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            drop(stderr.read_to_string(&mut text));
            text
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        for line in lines {
            greeting.push(line.unwrap());
            if greeting.last().is_some_and(|line| line.starts_with("ready")) {
                return Self { child, greeting, errors: Some(errors) };
            }
        }
        panic!("it did not start: {:?} {}", child.wait(), errors.join().unwrap());
    }

    /// Where a listener is: `http`, `grpc` or `resp`.
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

    /// Waits for its end; what it has logged.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.errors.take().unwrap().join().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
