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

/// A server of its own, until it is dropped.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    /// `None` once it is killed. Ends before its directory does.
    process: Option<Process>,
    dir: TempDir,
    port: Port,
    /// Where the nodes of a cluster speak to each other.
    bus: Option<Port>,
    /// Told by whoever pauses it; only there so that nobody waits for its answer.
    paused: AtomicBool,
}

impl Server {
    /// Starts a plain one.
    ///
    /// # Panics
    ///
    /// If it does not answer within ten seconds, with the end of its log.
    pub fn start(flavor: Flavor) -> Self {
        Self::options(flavor).start()
    }

    /// How to start another than a plain one.
    pub fn options(flavor: Flavor) -> ServerOptions {
        ServerOptions::new(flavor)
    }

    pub(super) fn launch(options: ServerOptions) -> Self {
        let dir = TempDir::with_prefix("pacegate-").expect("a temporary directory");
        let (port, bus) = (Port::reserve(), options.cluster.then(Port::reserve));
        let config = options.config(dir.path(), port.number(), bus.as_ref().map(Port::number));
        fs::write(dir.path().join("conf"), config).expect("a directory of ours");
        let mut server =
            Self { options, process: None, dir, port, bus, paused: AtomicBool::new(false) };
        server.spawn();
        server
    }

    /// Which server it is.
    pub fn flavor(&self) -> Flavor {
        self.options.flavor
    }

    /// The port it listens on, or did before it was killed. Nobody else is given it.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// `redis://127.0.0.1:PORT`, or what the options make of it: `rediss://` with TLS, `redis+unix://PATH` for the
    /// socket in the file system, and with the password in front of the host if there is one.
    pub fn url(&self) -> String {
        self.options.url(self.port(), &self.socket())
    }

    /// The socket in the file system, which every server has.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Whether the kit's connections have to say who they are.
    pub(super) fn is_guarded(&self) -> bool {
        self.options.guarded
    }

    /// The number of its process.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.running().id()
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Stops its process without ending it: it accepts connections and answers nothing.
    pub fn pause(&self) {
        self.paused.store(true, Relaxed);
        self.signal(Signal::STOP);
    }

    /// Lets it go on after a [pause](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
        self.paused.store(false, Relaxed);
    }

    /// Ends it at once, as a power cut would. Its port then refuses connections.
    pub fn kill(&mut self) {
        drop(self.process.take());
        self.paused.store(false, Relaxed);
    }

    /// Starts it again on the same port, with the same directory and configuration, killing it first if it runs.
    ///
    /// # Panics
    ///
    /// If it does not answer within ten seconds, with the end of its log.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Whether it was neither killed nor paused.
    pub fn is_running(&self) -> bool {
        self.process.is_some() && !self.paused.load(Relaxed)
    }

    /// A connection that is let in whatever the options say, by the socket in the file system.
    ///
    /// # Errors
    ///
    /// If nobody answers.
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
    /// If nobody answers. A refusal is an answer.
    pub fn command(&self, words: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.connect().and_then(|mut client| client.command(words));
        reply.unwrap_or_else(|error| panic!("no answer: {error}\n{}", self.log_tail()))
    }

    /// The same for a command that must not be refused.
    pub(super) fn must(&self, words: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.command(words);
        if reply.is_error() {
            let shown = words.iter().map(|word| String::from_utf8_lossy(word.as_ref()));
            panic!("{} refused {}: {reply:?}", self.address(), shown.collect::<Vec<_>>().join(" "));
        }
        reply
    }

    /// One value out of `INFO`, if it is there.
    pub fn info(&self, name: &str) -> Option<String> {
        let text = self.must(&["INFO", "everything"]).text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::to_owned)
    }

    /// The processor time its process has taken so far, for its users and for the system together.
    ///
    /// Asking takes some itself: about a tenth of a millisecond.
    pub fn cpu_micros(&self) -> u64 {
        let of = |name| micros(&self.info(name).expect("a value of every server"));
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
        self.process.as_ref().expect("a server that runs")
    }
}

/// Microseconds out of seconds such as `12.345678`.
fn micros(seconds: &str) -> u64 {
    let (whole, part) = seconds.trim().split_once('.').unwrap_or((seconds, "0"));
    let number = |text: &str| text.parse::<u64>().expect("a number of seconds");
    number(whole) * 1_000_000 + number(&format!("{part:0<6}")[..6])
}
