//! Installs the programs that the tests and the benchmarks run against.

mod apt;
mod program;
mod python;
mod throttlecrab;

use std::{
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, anyhow, bail};

use self::program::Program;
use crate::command::{root, show};

const REDIS: Program = Program {
    name: "redis",
    file: "redis-server",
    folder: "redis/usr/bin",
    variable: Some("PACEGATE_REDIS_SERVER"),
    version: "--version",
};
const VALKEY: Program = Program {
    name: "valkey",
    file: "valkey-server",
    folder: "valkey/usr/bin",
    variable: Some("PACEGATE_VALKEY_SERVER"),
    version: "--version",
};
const NGINX: Program = Program {
    name: "nginx",
    file: "nginx",
    folder: "nginx/usr/sbin",
    variable: Some("PACEGATE_NGINX"),
    version: "-v",
};
const CHROMIUM: Program = Program {
    name: "chromium",
    file: "chromium",
    folder: "chromium/usr/bin",
    variable: Some("PACEGATE_CHROMIUM"),
    version: "--version",
};
const CURL: Program =
    Program { name: "curl", file: "curl", folder: "curl", variable: None, version: "--version" };
const WRK: Program =
    Program { name: "wrk", file: "wrk", folder: "wrk", variable: None, version: "-v" };
const H2LOAD: Program = Program {
    name: "h2load",
    file: "h2load",
    folder: "h2load",
    variable: None,
    version: "--version",
};

const MDBOOK: Program = Program {
    name: "mdbook",
    file: "mdbook",
    folder: "mdbook/bin",
    variable: Some("PACEGATE_MDBOOK"),
    version: "--version",
};
const MDBOOK_VERSION: &str = "=0.5.4";

const CADDY: Program = Program {
    name: "caddy",
    file: "caddy",
    folder: "caddy/usr/bin",
    variable: None,
    version: "version",
};
const HAPROXY: Program =
    Program { name: "haproxy", file: "haproxy", folder: "haproxy", variable: None, version: "-v" };

/// Installs missing programs for the tests.
pub(crate) fn run() -> anyhow::Result<()> {
    let _only = lock()?;
    provide(REDIS, || apt::install("redis-server"))?;
    provide(VALKEY, apt::valkey)?;
    provide(NGINX, apt::nginx)?;
    provide(CURL, || apt::install("curl"))?;
    provide(CHROMIUM, || apt::install("chromium"))?;
    python::provide()?;
    control_plane()
}

/// Builds the config server of the xDS tests to `target/control-plane`. Without Go or its modules that test is skipped.
fn control_plane() -> anyhow::Result<()> {
    let go = |words: &[&str]| {
        let mut command = Command::new("go");
        command.args(words).env("GOTOOLCHAIN", "local");
        command.current_dir(root().join("crates/pacegate-cli/tests/control-plane"));
        command
    };
    let has_modules = go(&["mod", "download"]).output().is_ok_and(|output| output.status.success());
    if !has_modules {
        writeln!(io::stderr(), "no config server in Go: Go or its modules are missing")?;
        return Ok(());
    }
    run_command(&mut go(&["build", "-o", "../../../../target/control-plane", "."]))
}

/// A program that benchmarks start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    Redis,
    Valkey,
    Wrk,
    H2load,
    Throttlecrab,
}

/// Installs missing programs for a benchmark.
pub(crate) fn for_bench(programs: &[Tool]) -> anyhow::Result<()> {
    let _only = lock()?;
    programs.iter().try_for_each(|program| match program {
        Tool::Redis => provide(REDIS, || apt::install("redis-server")),
        Tool::Valkey => provide(VALKEY, apt::valkey),
        Tool::Wrk => provide(WRK, || apt::install("wrk")),
        Tool::H2load => provide(H2LOAD, || apt::install("nghttp2-client")),
        Tool::Throttlecrab => throttlecrab::provide(),
    })
}

/// Installs missing programs for the site, and returns the path of mdBook.
pub(crate) fn for_site() -> anyhow::Result<PathBuf> {
    let _only = lock()?;
    provide(CHROMIUM, || apt::install("chromium"))?;
    provide(MDBOOK, || {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "mdbook", "--version", MDBOOK_VERSION]);
        cargo.args(["--no-default-features", "--features", "search", "--root"]);
        cargo.arg(folder()?.join("mdbook"));
        // Do not use the target directory or the configuration of this workspace.
        cargo.env_remove("CARGO_TARGET_DIR").current_dir("/");
        run_command(&mut cargo)
    })?;
    MDBOOK.find().context("mdbook not found after its installation")
}

/// Installs missing programs for the recipes.
pub(crate) fn for_recipes() -> anyhow::Result<()> {
    let _only = lock()?;
    provide(NGINX, apt::nginx)?;
    provide(CADDY, apt::caddy)?;
    provide(HAPROXY, || apt::install("haproxy"))?;
    provide(CURL, || apt::install("curl"))?;
    python::provide()
}

/// Finds a program, installs it if it is missing, and prints its version.
fn provide(program: Program, install: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if program.find().is_none() {
        install().map_err(|error| {
            let name = program.name;
            anyhow!("cannot install {name}: {error:#}\nhint: {}", program.hint())
        })?;
    }
    program.tell()
}

/// Returns the directory for everything that is not installed in the system. Resolves links, because a Python
/// environment contains its own path.
fn folder() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/servers");
    let no_folder = || format!("cannot create {}", folder.display());
    fs::create_dir_all(&folder).with_context(no_folder)?;
    folder.canonicalize().with_context(no_folder)
}

/// Locks the directory while installing: several checkouts may share it.
fn lock() -> anyhow::Result<File> {
    let path = folder()?.join("lock");
    let cannot = || format!("cannot lock {}", path.display());
    let file = File::create(&path).with_context(cannot)?;
    file.lock().with_context(cannot)?;
    Ok(file)
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{line}")
}

fn run_command(command: &mut Command) -> anyhow::Result<()> {
    let line = show(command)?;
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`{line}` failed with {status}"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let program = command.get_program().display();
            bail!("`{program}` not found, needed by `{line}`")
        }
        Err(error) => Err(error).with_context(|| format!("cannot start `{line}`")),
    }
}
