use std::path::Path;

use super::{ConfigError, Environment, Settings, read, rules, yaml};
use crate::envoy::RuleFile;

/// The reason why a configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file, as it was named.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A file is invalid.
    #[error(transparent)]
    Bad(#[from] ConfigError),
}

/// Reads a configuration from a file, or from a directory with files of envoyproxy/ratelimit. Blocks on file I/O: do
/// not call it on a thread of an async runtime.
///
/// # Errors
///
/// If a file cannot be read, or if [`read`](super::read()) fails.
pub fn load(path: &Path, environment: &Environment<'_>) -> Result<Settings, LoadError> {
    if path.is_dir() {
        return Ok(rules::read(&rule_files(path, environment)?)?);
    }
    Ok(read(&text(path, environment)?, &path.display().to_string(), environment)?)
}

/// Reads a file of envoyproxy/ratelimit, or all files of a directory.
pub(crate) fn rule_files(
    path: &Path,
    environment: &Environment<'_>,
) -> Result<Vec<RuleFile>, LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: path.display().to_string(), error };
    let mut files = Vec::new();
    for file in RuleFile::files(path).map_err(unreadable)? {
        let text = text(&file, environment)?;
        yaml::check_length(&text, &file.display().to_string())?;
        files.push(RuleFile { file, text });
    }
    Ok(files)
}

/// Returns the text of a file. Of a file that is too long, returns a little more than is allowed.
fn text(path: &Path, environment: &Environment<'_>) -> Result<String, LoadError> {
    let name = path.display().to_string();
    let read = environment.files.read(path);
    let bytes = read.map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    let text = str::from_utf8(&bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        ConfigError::whole(&name, format!("line {line} is not UTF-8: save the file as UTF-8"))
    })?;
    Ok(text.to_owned())
}
