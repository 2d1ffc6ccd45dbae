//! What a configuration may refer to, outside of its file.

use std::{
    cell::RefCell,
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
};

use super::hint::shorten;

/// Where a configuration finds the variables that it names.
pub struct Environment<'a> {
    variable: Lookup<'a>,
    /// Whether secrets are looked up at all.
    secrets: bool,
    /// Files that secrets were looked for in.
    files: RefCell<Vec<PathBuf>>,
}

type Lookup<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// A secret, or why there is none. Without any: it was not looked up.
pub(crate) type Secret = Result<Option<Vec<u8>>, String>;

/// The longest secret.
const MAX_SECRET: u64 = 64 * 1024;

impl<'a> Environment<'a> {
    /// The variables of this process.
    pub fn process() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(variable)
    }

    /// These variables.
    pub fn of(variable: impl Fn(&str) -> Option<String> + 'a) -> Self {
        Self { variable: Box::new(variable), secrets: true, files: RefCell::default() }
    }

    /// Neither variables nor files are looked up: for checking a file where its secrets are not, as in CI. What they
    /// would have said is then made up, so the settings are of no use to a service.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        Self { secrets: false, ..self }
    }

    /// What a variable holds, if it is set.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    /// Files that secrets were looked for in so far, found or not.
    pub(crate) fn files(self) -> Vec<PathBuf> {
        self.files.into_inner()
    }

    pub(super) fn has_secrets(&self) -> bool {
        self.secrets
    }

    /// What a variable holds.
    pub(super) fn variable(&self, name: &str) -> Secret {
        if !self.secrets {
            return Ok(None);
        }
        let value = (self.variable)(name).unwrap_or_default();
        match value.is_empty() {
            true => Err(format!("the environment variable `{}` is not set: set it", shorten(name))),
            false => Ok(Some(value.into_bytes())),
        }
    }

    /// What a file holds, without the end of its last line.
    pub(crate) fn file(&self, path: &Path) -> Secret {
        if !self.secrets {
            return Ok(None);
        }
        self.files.borrow_mut().push(path.to_owned());
        let shown = shorten(&path.to_string_lossy());
        let mut held = Vec::new();
        let read =
            fs::File::open(path).and_then(|file| file.take(MAX_SECRET + 1).read_to_end(&mut held));
        read.map_err(|error| format!("cannot read `{shown}`: {error}"))?;
        while held.last().is_some_and(|byte| b"\r\n".contains(byte)) {
            held.pop();
        }
        if held.is_empty() || u64::try_from(held.len()).is_ok_and(|length| length > MAX_SECRET) {
            return Err(format!("`{shown}` should hold from 1 to {MAX_SECRET} bytes"));
        }
        Ok(Some(held))
    }
}

/// A path as a file named `from` means it.
pub(super) fn beside(from: &str, path: &str) -> PathBuf {
    Path::new(from).parent().unwrap_or(Path::new("")).join(path)
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("secrets", &self.secrets).finish_non_exhaustive()
    }
}
