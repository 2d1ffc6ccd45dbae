use std::{
    fs, io,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    Client, Flavor, Reply, ServerOptions,
    options::OWN_USER,
    port::Port,
    process::{Process, tail},
};

/// A Redis or Valkey server process, which ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    /// `None` after it was killed. Dropped before its directory.
    process: Option<Process>,
    dir: TempDir,
    port: Port,
    /// The cluster bus port.
    bus: Option<Port>,
    /// Set by [`Self::pause`]; prevents waiting for a response.
    paused: AtomicBool,
}

impl Server {
    /// Starts a server with default options.
    ///
    /// # Panics
    ///
    /// Panics if it does not respond within ten seconds, with the end of its log.
    pub fn start(flavor: Flavor) -> Self {
        Self::options(flavor).start()
    }

    /// Returns options for a server.
    pub fn options(flavor: Flavor) -> ServerOptions {
        ServerOptions::new(flavor)
    }

    pub(super) fn launch(options: ServerOptions) -> Self {
        let dir = TempDir::with_prefix("pacegate-").expect("create a temporary directory");
        let (port, bus) = (Port::reserve(), options.cluster.then(Port::reserve));
        let config = options.config(dir.path(), port.number(), bus.as_ref().map(Port::number));
        fs::write(dir.path().join("conf"), config).expect("write to the temporary directory");
        let mut server =
            Self { options, process: None, dir, port, bus, paused: AtomicBool::new(false) };
        server.spawn();
        server
    }

    /// Returns the server implementation.
    pub fn flavor(&self) -> Flavor {
        self.options.flavor
    }

    /// Returns its port, also after it was killed. The port stays reserved.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns the URL that the options lead to: `redis://127.0.0.1:PORT`, `rediss://` with TLS, or
    /// `redis+unix://PATH` for the Unix socket, with the password if there is one.
    pub fn url(&self) -> String {
        self.options.url(self.port(), &self.socket())
    }

    /// Returns the path of its Unix socket, which every server has.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Returns true if the test kit's connections have to authenticate.
    pub(super) fn is_guarded(&self) -> bool {
        self.options.guarded
    }

    /// Returns its process id.
    ///
    /// # Panics
    ///
    /// Panics if it was killed.
    pub fn pid(&self) -> u32 {
        self.running().id()
    }

    /// Returns its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Stops its process without ending it: it accepts connections but does not respond.
    pub fn pause(&self) {
        self.paused.store(true, Relaxed);
        self.signal(Signal::STOP);
    }

    /// Continues after a [pause](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
        self.paused.store(false, Relaxed);
    }

    /// Kills it immediately, like a power failure. Its port then refuses connections.
    pub fn kill(&mut self) {
        drop(self.process.take());
        self.paused.store(false, Relaxed);
    }

    /// Starts it again on the same port, with the same directory and configuration. Kills it first if it is
    /// running.
    ///
    /// # Panics
    ///
    /// Panics if it does not respond within ten seconds, with the end of its log.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Returns true if it was neither killed nor paused.
    pub fn is_running(&self) -> bool {
        self.process.is_some() && !self.paused.load(Relaxed)
    }

    /// Opens a connection over the Unix socket, which is permitted regardless of the options.
    ///
    /// # Errors
    ///
    /// If the server does not respond.
    pub fn connect(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(&self.socket())?;
        if self.is_guarded() {
            client.command(&["AUTH", OWN_USER, "any"])?;
        }
        Ok(client)
    }

    /// Sends one command on a new connection.
    ///
    /// # Panics
    ///
    /// Panics if the server does not respond. An error reply is returned.
    pub fn command(&self, words: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.connect().and_then(|mut client| client.command(words));
        reply.unwrap_or_else(|error| panic!("no response: {error}\n{}", self.log_tail()))
    }

    /// Sends a command and panics on an error reply.
    pub(super) fn must(&self, words: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.command(words);
        if reply.is_error() {
            let shown = words.iter().map(|word| String::from_utf8_lossy(word.as_ref()));
            panic!(
                "{} rejected {}: {reply:?}",
                self.address(),
                shown.collect::<Vec<_>>().join(" ")
            );
        }
        reply
    }

    /// Returns one value of `INFO`, if it exists.
    pub fn info(&self, name: &str) -> Option<String> {
        let text = self.must(&["INFO", "everything"]).text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::to_owned)
    }

    /// Returns the CPU time of its process so far, user and system time together.
    ///
    /// The query itself takes about a tenth of a millisecond.
    pub fn cpu_micros(&self) -> u64 {
        let of = |name| micros(&self.info(name).expect("INFO contains the CPU time"));
        of("used_cpu_user") + of("used_cpu_sys")
    }

    fn spawn(&mut self) {
        let mut command = Command::new(self.options.flavor.binary());
        command.arg(self.dir.path().join("conf"));
        if self.options.sentinel {
            command.arg("--sentinel");
        }
        let mut process = Process::start(&mut command, &self.dir.path().join("log"));
        process.wait_until(&self.flavor().to_string(), || self.answers());
        self.process = Some(process);
    }

    fn answers(&self) -> bool {
        let reply = self.connect().and_then(|mut client| client.command(&["PING"]));
        reply.is_ok_and(|reply| !reply.is_error())
    }

    fn log_tail(&self) -> String {
        tail(&self.dir.path().join("log"))
    }

    fn signal(&self, signal: Signal) {
        self.running().signal(signal);
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("a running server")
    }
}

/// Parses seconds such as `12.345678` into microseconds.
fn micros(seconds: &str) -> u64 {
    let (whole, part) = seconds.trim().split_once('.').unwrap_or((seconds, "0"));
    let number = |text: &str| text.parse::<u64>().expect("a number of seconds");
    number(whole) * 1_000_000 + number(&format!("{part:0<6}")[..6])
}
