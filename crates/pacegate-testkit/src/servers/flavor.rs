use std::{fmt, path::PathBuf};

use super::program;

/// The server implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl Flavor {
    /// Both implementations.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// Returns the program to start: from `PACEGATE_REDIS_SERVER` or `PACEGATE_VALKEY_SERVER`, from
    /// `target/servers` (see `cargo xtask servers`), or from `PATH`, in this order.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
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
