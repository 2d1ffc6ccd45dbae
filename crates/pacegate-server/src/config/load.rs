use std::{fs, io::Read, path::Path};

use super::{ConfigError, Environment, Settings, read, rules, yaml};
use crate::envoy::RuleFile;

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Nothing could be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file, as it was named.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
    /// What was read says something wrong.
    #[error(transparent)]
    Bad(#[from] ConfigError),
}

/// Reads a configuration from a file, or from a folder with files of envoyproxy/ratelimit's. Takes as long as the disk
/// does: not for a thread that others wait for.
///
/// # Errors
///
/// If it cannot be read, or as [`read`](super::read()) has it.
pub fn load(path: &Path, environment: &Environment<'_>) -> Result<Settings, LoadError> {
    if path.is_dir() {
        return load_folder(path);
    }
    Ok(read(&text(path)?, &path.display().to_string(), environment)?)
}

fn load_folder(path: &Path) -> Result<Settings, LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: path.display().to_string(), error };
    let mut files = Vec::new();
    for file in RuleFile::files(path).map_err(unreadable)? {
        let text = text(&file)?;
        yaml::check_length(&text, &file.display().to_string())?;
        files.push(RuleFile { file, text });
    }
    Ok(rules::read(&files)?)
}

/// What a file holds, or a little more than it may.
fn text(path: &Path) -> Result<String, LoadError> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    // One more than there may be, so that too many are seen.
    let most = u64::try_from(yaml::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let done = fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    done.map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].split(|b| *b == b'\n').count();
        ConfigError::whole(&name, format!("line {line} is not UTF-8: save the file as UTF-8"))
    })?;
    Ok(text)
}
