use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Returns the Python interpreter of the environment that `cargo xtask servers` created, with redis-py and
/// schemathesis, or the one in `PACEGATE_PYTHON`.
///
/// # Panics
///
/// Panics if there is none.
pub fn python() -> PathBuf {
    // One in `PATH` would lack the packages.
    named("PACEGATE_PYTHON")
        .map(PathBuf::from)
        .or_else(|| Some(own("python/bin/python")).filter(|file| file.is_file()))
        .unwrap_or_else(|| panic!("no Python environment found: run cargo xtask servers"))
}

/// Returns the program from an environment variable, from a directory in `target/servers`, or from `PATH`.
pub(super) fn find(file: &str, folder: &str, variable: &str) -> PathBuf {
    if let Some(binary) = named(variable) {
        return binary.into();
    }
    let path = named("PATH").unwrap_or_default();
    std::iter::once(own(folder))
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(file))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{file} not found: run cargo xtask servers"))
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers").join(path)
}

fn named(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}
