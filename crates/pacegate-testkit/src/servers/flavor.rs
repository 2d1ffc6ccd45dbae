use std::{fmt, path::PathBuf};

use super::program;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl Flavor {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// The program to start: the one that `PACEGATE_REDIS_SERVER` or `PACEGATE_VALKEY_SERVER` names, or the one that
    /// `cargo xtask servers` put under `target/servers`, or the one in `PATH`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn binary(self) -> PathBuf {
        let variable = match self {
            Self::Redis => "PACEGATE_REDIS_SERVER",
            Self::Valkey => "PACEGATE_VALKEY_SERVER",
        };
        program::find(&format!("{self}-server"), &format!("{self}/usr/bin"), variable)
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        })
    }
}
