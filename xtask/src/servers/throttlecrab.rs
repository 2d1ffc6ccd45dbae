//! The peer that speaks all three protocols of the service too.

use std::process::Command;

use super::{apt, folder, program::Program, run_command};

/// As `bench/Cargo.toml` has the library.
const VERSION: &str = "=0.4.40";

const THROTTLECRAB: Program = Program {
    name: "throttlecrab",
    file: "throttlecrab-server",
    folder: "throttlecrab/bin",
    variable: Some("PACEGATE_THROTTLECRAB"),
    version: "--version",
};

/// Its build generates code with it.
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
        // Not into the folder where the workspace is built, nor with its configuration.
        cargo.env_remove("CARGO_TARGET_DIR").current_dir("/");
        run_command(&mut cargo)
    })
}
