//! The Lua scripts.

use redis::{Cmd, Script};

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Source {
    script: Script,
    text: String,
}

/// All scripts, in the dialect of a server. `*_full` is for a server that is out of memory: it may write to keys but
/// not create them.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// For [simple](crate::batch::Batch::is_simple) batches.
    pub(crate) charge_simple: Source,
    /// For all other batches.
    pub(crate) charge_batch: Source,
    pub(crate) charge_batch_full: Source,
    pub(crate) update: Source,
    /// For [simple](crate::settlement::is_simple) settlements.
    pub(crate) settle_simple: Source,
    /// For all other settlements.
    pub(crate) settle: Source,
    pub(crate) claim: Source,
    pub(crate) blocks: Source,
    /// For the windows and logs of other limiters.
    pub(crate) window: Source,
    pub(crate) window_full: Source,
    pub(crate) log: Source,
    pub(crate) log_full: Source,
}

macro_rules! script {
    ($($name:literal),+) => {
        concat!(include_str!("script/common.lua"), $(include_str!(concat!("script/", $name))),+)
    };
}

impl Scripts {
    /// For Redis 7 and Valkey. With the header, a cluster rejects access to undeclared keys.
    pub(crate) fn with_header() -> Self {
        Self::new("#!lua\n", "#!lua flags=allow-oom\n")
    }

    /// For Redis 6.2.
    pub(crate) fn plain() -> Self {
        Self::new("", "-- when memory is full\n")
    }

    fn new(header: &str, header_full: &str) -> Self {
        Self {
            charge_simple: Source::new(header, script!("charge_simple.lua")),
            charge_batch: Source::new(
                header,
                script!("log_entries.lua", "returns.lua", "due.lua", "charge_batch.lua"),
            ),
            charge_batch_full: Source::new(
                header_full,
                script!("log_entries.lua", "returns.lua", "due.lua", "charge_batch.lua"),
            ),
            // They create few keys, and a release may free the memory that is missing.
            update: Source::new(
                header_full,
                script!("log_entries.lua", "returns.lua", "due.lua", "update.lua"),
            ),
            settle_simple: Source::new(
                header_full,
                script!("returns.lua", "settle_state.lua", "settle_simple.lua"),
            ),
            settle: Source::new(
                header_full,
                script!(
                    "log_entries.lua",
                    "returns.lua",
                    "due.lua",
                    "settle_state.lua",
                    "settle.lua"
                ),
            ),
            claim: Source::new(header, include_str!("script/claim.lua")),
            blocks: Source::new(header, script!("blocks.lua")),
            window: Source::new(header, script!("window.lua")),
            window_full: Source::new(header_full, script!("window.lua")),
            log: Source::new(header, script!("log.lua")),
            log_full: Source::new(header_full, script!("log.lua")),
        }
    }
}

impl Source {
    fn new(header: &str, body: &str) -> Self {
        let text = format!("{header}{body}");
        Self { script: Script::new(&text), text }
    }

    /// Returns a call by digest.
    pub(crate) fn call(&self) -> Cmd {
        redis::cmd("EVALSHA").arg(self.script.get_hash()).take()
    }

    /// Returns a call by text, after which the server knows the digest.
    pub(crate) fn load_and_call(&self) -> Cmd {
        redis::cmd("EVAL").arg(&self.text).take()
    }
}
