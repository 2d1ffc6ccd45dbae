use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::wait::{SERVER_TIMEOUT, poll_until};

/// A child process with a log, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the process. Its output is appended to `log`.
    pub(super) fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log);
        let file = file.expect("write to the temporary directory");
        command.stdin(Stdio::null()).stderr(file.try_clone().expect("a file")).stdout(file);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}", command.get_program().display())
        });
        Self { child, log: log.to_owned() }
    }

    /// Waits until it is ready. Panics with the end of its log on a timeout or if it exits.
    pub(super) fn wait_until(&mut self, name: &str, mut ready: impl FnMut() -> bool) {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        let done = poll_until(SERVER_TIMEOUT, || ended(&mut self.child) || ready());
        let good = done && !ended(&mut self.child);
        assert!(good, "{name} failed to start:\n{}", tail(&self.log));
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let child = Pid::from_child(&self.child);
        kill_process(child, signal).expect("a running child process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignore errors: it may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the last lines of a log.
pub(super) fn tail(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
