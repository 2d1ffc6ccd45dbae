use std::{
    env, fmt,
    path::{Path, PathBuf},
};

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

    /// The program to start: the one that `TOLLGATE_REDIS_SERVER` or `TOLLGATE_VALKEY_SERVER` names, or the one that
    /// `cargo xtask servers` put under `target/servers`, or the one in `PATH`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn binary(self) -> PathBuf {
        let program = format!("{self}-server");
        let variable = match self {
            Self::Redis => "TOLLGATE_REDIS_SERVER",
            Self::Valkey => "TOLLGATE_VALKEY_SERVER",
        };
        if let Some(named) = environment(variable) {
            return named.into();
        }
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let unpacked = workspace.join(format!("target/servers/{self}/usr/bin"));
        let path = environment("PATH").unwrap_or_default();
        std::iter::once(unpacked)
            .chain(env::split_paths(&path))
            .map(|folder| folder.join(&program))
            .find(|file| file.is_file())
            .unwrap_or_else(|| panic!("no {program} found: run cargo xtask servers"))
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

fn environment(name: &str) -> Option<std::ffi::OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
