use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The interpreter of the environment of Python that `cargo xtask servers` made, with redis-py and schemathesis, or the
/// one that `PACEGATE_PYTHON` names.
///
/// # Panics
///
/// If there is none.
pub fn python() -> PathBuf {
    // One in `PATH` would be without the packages.
    named("PACEGATE_PYTHON")
        .map(PathBuf::from)
        .or_else(|| Some(own("python/bin/python")).filter(|file| file.is_file()))
        .unwrap_or_else(|| panic!("no environment of Python found: run cargo xtask servers"))
}

/// The program that a variable names, or the one in a folder of `target/servers`, or the one in `PATH`.
pub(super) fn find(file: &str, folder: &str, variable: &str) -> PathBuf {
    if let Some(binary) = named(variable) {
        return binary.into();
    }
    let path = named("PATH").unwrap_or_default();
    std::iter::once(own(folder))
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(file))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("no {file} found: run cargo xtask servers"))
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers").join(path)
}

fn named(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}
