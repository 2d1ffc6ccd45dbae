//! The environment variables and secret files that a configuration refers to.

use std::{
    cell::RefCell,
    fmt, io,
    path::{Path, PathBuf},
    rc::Rc,
};

use super::{files::Files, hint::shorten};

/// The source of environment variables and files for a configuration.
pub struct Environment<'a> {
    variable: Lookup<'a>,
    /// True if secrets are read.
    pub(super) secrets: bool,
    /// The files that this environment reads through.
    pub(crate) files: Rc<Files>,
    /// The files of the secrets that were read.
    secret_files: RefCell<Vec<PathBuf>>,
}

type Lookup<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// A secret, or the reason why there is none. `None` if it was not looked up.
pub(crate) type Secret = Result<Option<Vec<u8>>, SecretError>;

/// The reason why a secret cannot be used. The secret itself is not part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    #[error("the environment variable `{0}` is not set: set it")]
    Unset(String),
    #[error("cannot read `{path}`: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("`{0}` should hold from 1 to {MAX_SECRET} bytes")]
    Length(String),
}

/// The longest secret.
const MAX_SECRET: usize = 64 * 1024;

impl<'a> Environment<'a> {
    /// Uses the environment variables of this process.
    pub fn process() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(variable)
    }

    /// Uses these variables.
    pub fn of(variable: impl Fn(&str) -> Option<String> + 'a) -> Self {
        Self {
            variable: Box::new(variable),
            secrets: true,
            files: Rc::default(),
            secret_files: RefCell::default(),
        }
    }

    /// Skips secrets, to check a configuration where they are unavailable, as in CI. Placeholders replace them, so a
    /// server must not use the settings.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        Self { secrets: false, ..self }
    }

    /// Returns the value of a variable, if it is set.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    /// Reads files through `files`.
    pub(crate) fn reading(self, files: Rc<Files>) -> Self {
        Self { files, ..self }
    }

    /// Returns the files of all secrets that were looked up, found or not.
    pub(crate) fn into_secret_files(self) -> Vec<PathBuf> {
        self.secret_files.into_inner()
    }

    /// Returns the secret in a variable.
    pub(super) fn variable(&self, name: &str) -> Secret {
        if !self.secrets {
            return Ok(None);
        }
        let value = (self.variable)(name).unwrap_or_default();
        match value.is_empty() {
            true => Err(SecretError::Unset(shorten(name))),
            false => Ok(Some(value.into_bytes())),
        }
    }

    /// Returns the secret in a file, without trailing line ends.
    pub(crate) fn file(&self, path: &Path) -> Secret {
        if !self.secrets {
            return Ok(None);
        }
        self.secret_files.borrow_mut().push(path.to_owned());
        let shown = shorten(&path.to_string_lossy());
        let read = match self.files.read(path) {
            Ok(read) => read,
            Err(error) => return Err(SecretError::Unreadable { path: shown, error }),
        };
        let end = read.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
        match end {
            1..=MAX_SECRET => Ok(Some(read[..end].to_vec())),
            _ => Err(SecretError::Length(shown)),
        }
    }
}

/// Resolves a path relative to the directory of the file `from`.
pub(crate) fn beside(from: &str, path: impl AsRef<Path>) -> PathBuf {
    Path::new(from).parent().unwrap_or(Path::new("")).join(path)
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("secrets", &self.secrets).finish_non_exhaustive()
    }
}
