//! throttlecrab, a server with the same three protocols, for the benchmark.

use std::process::Command;

use super::{apt, folder, program::Program, run_command};

/// The same version as in `bench/Cargo.toml`.
const VERSION: &str = "=0.4.40";

const THROTTLECRAB: Program = Program {
    name: "throttlecrab",
    file: "throttlecrab-server",
    folder: "throttlecrab/bin",
    variable: Some("PACEGATE_THROTTLECRAB"),
    version: "--version",
};

/// Its build generates code with protoc.
const PROTOC: Program = Program {
    name: "protoc",
    file: "protoc",
    folder: "protoc",
    variable: Some("PROTOC"),
    version: "--version",
};

pub(super) fn provide() -> anyhow::Result<()> {
    super::provide(THROTTLECRAB, || {
        super::provide(PROTOC, || apt::install("protobuf-compiler"))?;
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "throttlecrab-server", "--version", VERSION, "--root"]);
        cargo.arg(folder()?.join("throttlecrab"));
        // Do not use the target directory or the configuration of this workspace.
        cargo.env_remove("CARGO_TARGET_DIR").current_dir("/");
        run_command(&mut cargo)
    })
}
