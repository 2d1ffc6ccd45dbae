//! The scripts, as the server gets them.

use redis::{Cmd, Script};

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Source {
    script: Script,
    text: String,
}

/// All scripts, in the dialect of a server.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// For batches in which everybody wants one thing of one string.
    pub(crate) each: Source,
    /// For all others.
    pub(crate) charge: Source,
    /// The same for a server that has no memory left: it may write, and must not create.
    pub(crate) charge_full: Source,
    pub(crate) amend: Source,
    /// What the layouts of other limiters need.
    pub(crate) layouts: Layouts,
}

/// Scripts for counters of other limiters, each also for a server that has no memory left.
#[derive(Debug)]
pub(crate) struct Layouts {
    pub(crate) window: Source,
    pub(crate) window_full: Source,
    pub(crate) log: Source,
    pub(crate) log_full: Source,
}

macro_rules! script {
    ($name:literal) => {
        concat!(include_str!("script/common.lua"), include_str!(concat!("script/", $name)))
    };
}

impl Scripts {
    /// For servers that know the header (Redis 7, Valkey), which makes a cluster refuse keys that were not declared.
    pub(crate) fn with_header() -> Self {
        Self::new("#!lua\n", "#!lua flags=allow-oom\n")
    }

    /// For Redis 6.2.
    pub(crate) fn plain() -> Self {
        Self::new("", "-- when memory is full\n")
    }

    fn new(header: &str, header_full: &str) -> Self {
        Self {
            each: Source::new(header, script!("each.lua")),
            charge: Source::new(header, script!("charge.lua")),
            charge_full: Source::new(header_full, script!("charge.lua")),
            // It makes no keys, and what it gives back may be what is missing.
            amend: Source::new(header_full, script!("amend.lua")),
            layouts: Layouts {
                window: Source::new(header, script!("window.lua")),
                window_full: Source::new(header_full, script!("window.lua")),
                log: Source::new(header, script!("log.lua")),
                log_full: Source::new(header_full, script!("log.lua")),
            },
        }
    }
}

impl Source {
    fn new(header: &str, body: &str) -> Self {
        let text = format!("{header}{body}");
        Self { script: Script::new(&text), text }
    }

    /// Runs the script by its digest.
    pub(crate) fn call(&self) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.script.get_hash());
        command
    }

    /// Runs the script by its text, after which the server knows its digest.
    pub(crate) fn load_and_call(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text);
        command
    }
}
