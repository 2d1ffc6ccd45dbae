//! The Redis and Valkey servers that the tests run against.

mod apt;

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, anyhow, ensure};

use crate::command::root;

/// A server, and the environment variable that names one of one's own.
#[derive(Clone, Copy, Debug)]
struct Flavor {
    name: &'static str,
    variable: &'static str,
}

const REDIS: Flavor = Flavor { name: "redis", variable: "TOLLGATE_REDIS_SERVER" };
const VALKEY: Flavor = Flavor { name: "valkey", variable: "TOLLGATE_VALKEY_SERVER" };

/// Installs what is missing.
pub(crate) fn run() -> anyhow::Result<()> {
    provide(REDIS, || apt::install("redis-server"))?;
    provide(VALKEY, apt::valkey)
}

fn provide(flavor: Flavor, install: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let Flavor { name, variable } = flavor;
    if flavor.find().is_none() {
        install().map_err(|error| {
            let hint = format!("install it, or let {variable} name {name}-server");
            anyhow!("cannot install {name}: {error:#}\nhint: {hint}")
        })?;
    }
    let binary = flavor.find().with_context(|| {
        format!("{name}-server was installed and is not found\nhint: let {variable} name it")
    })?;
    let version = Command::new(&binary).arg("--version").output();
    let version = version.with_context(|| format!("cannot run {}", binary.display()))?;
    let said = String::from_utf8_lossy(&version.stdout);
    let error = String::from_utf8_lossy(&version.stderr);
    ensure!(version.status.success(), "{} does not run: {}", binary.display(), error.trim());
    let number = said.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("unknown");
    writeln!(io::stderr(), "{name} {number}: {}", binary.display())?;
    Ok(())
}

impl Flavor {
    /// The same search as in `tollgate_testkit::servers`.
    fn find(self) -> Option<PathBuf> {
        let named = |name| env::var_os(name).filter(|value| !value.is_empty());
        if let Some(binary) = named(self.variable) {
            return Some(binary.into());
        }
        let unpacked = apt::unpacked(self.name).join("usr/bin");
        let path: OsString = named("PATH").unwrap_or_default();
        std::iter::once(unpacked)
            .chain(env::split_paths(&path))
            .map(|folder| folder.join(format!("{}-server", self.name)))
            .find(|file| file.is_file())
    }
}
