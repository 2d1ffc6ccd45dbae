//! A headless browser for tests of web pages.

mod page;
mod pipe;

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::page::{Page, Scheme};
use self::pipe::Pipe;
use super::program;

/// A Chromium process, which ends when it is dropped.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    pipe: Pipe,
    // Dropped after the process that writes to it.
    _dir: TempDir,
}

/// Flags that keep the browser from sending requests, except for the pages that a test opens.
const FLAGS: [&str; 18] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--metrics-recording-only",
    // Host names for tests that no DNS server knows.
    "--host-resolver-rules=MAP *.test 127.0.0.1",
    "--password-store=basic",
];

/// The browser expects the protocol's two pipes as file descriptors 3 and 4; they are the standard input and
/// output of the shell.
const LAUNCH: &str = r#"exec "$@" 3<&0 4>&1 0</dev/null 1>&2"#;

impl Chromium {
    /// Starts a browser.
    ///
    /// # Panics
    ///
    /// Panics if it does not respond within half a minute, with the end of its log.
    pub fn start() -> Arc<Self> {
        let dir = TempDir::with_prefix("pacegate-chromium-").expect("create a temporary directory");
        let log = dir.path().join("log");
        let program = program::find("chromium", "chromium/usr/bin", "PACEGATE_CHROMIUM");
        let mut command = launch(program, &dir);
        let file = File::create(&log).expect("write to the temporary directory");
        let mut child = command.stderr(file).spawn().expect("start a shell");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = (stdin.expect("a pipe"), stdout.expect("a pipe"));
        let pipe = Pipe::new(stdin, stdout, log);
        pipe.ask("Browser.getVersion", &json!({}), None);
        Arc::new(Self { child, pipe, _dir: dir })
    }

    /// Returns the browser that other tests of this process are using, or starts a new one.
    ///
    /// # Panics
    ///
    /// As [`Chromium::start`].
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Chromium>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Self::start();
        *shared = Arc::downgrade(&started);
        started
    }

    /// Opens an empty page with separate storage and cache.
    ///
    /// # Panics
    ///
    /// Panics if the browser fails to create it.
    pub fn page(self: &Arc<Self>) -> Page {
        Page::new(self.clone())
    }

    fn ask(&self, method: &str, parameters: &Value, session: Option<&str>) -> Value {
        self.pipe.ask(method, parameters, session)
    }
}

fn launch(program: PathBuf, dir: &TempDir) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", LAUNCH, "sh"]).arg(program).args(FLAGS);
    command.arg(format!("--user-data-dir={}", dir.path().join("data").display()));
    command.arg("about:blank").env("HOME", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // On request, it ends all of its processes; killing the first one would leave others running for a
        // while.
        self.pipe.close();
        drop(self.child.wait());
    }
}
