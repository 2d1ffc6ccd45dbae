//! The files of envoyproxy/ratelimit, as they are written, and where in them something is wrong.
//!
//! Everything their files may say is read. What only ours may say: several documents in a file; in a `rate_limit` an
//! `algorithm`, a `burst`, and a `period` or any length as the `unit` (`30s`, `5m`); beside it `rate_limits`, a list of
//! limits that all apply, and `failure`, what happens when the store cannot answer.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use crate::config::{masked, message};

/// The text of a file, with its name for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

/// What is wrong in a file, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    pub(crate) message: String,
    pub(crate) file: PathBuf,
    /// From 1; 0 if it is about the file as a whole.
    pub(crate) line: u64,
    /// From 1; 0 if it is about the file as a whole.
    pub(crate) column: u64,
    /// That line, shortened; empty if there is none.
    pub(crate) snippet: String,
}

/// One document: a domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Root {
    pub(super) domain: Spanned<String>,
    pub(super) descriptors: Option<Vec<Spanned<Descriptor>>>,
}

/// A key, and perhaps a value, at one level.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Descriptor {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<Spanned<String>>,
    pub(super) rate_limit: Option<Spanned<RateLimit>>,
    pub(super) rate_limits: Option<Spanned<Vec<Spanned<RateLimit>>>>,
    pub(super) descriptors: Option<Vec<Spanned<Self>>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) quota_mode: Option<bool>,
    pub(super) share_threshold: Option<Spanned<bool>>,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
    pub(super) failure: Option<Spanned<String>>,
    /// Says how their metrics are named. Ours have the names of policies.
    #[serde(rename = "detailed_metric")]
    _detailed_metric: Option<bool>,
    #[serde(rename = "value_to_metric")]
    _value_to_metric: Option<bool>,
}

/// How much, and how it is counted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    pub(super) name: Option<Spanned<String>>,
    pub(super) unit: Option<Spanned<String>>,
    pub(super) period: Option<Spanned<String>>,
    pub(super) requests_per_unit: Option<Spanned<u64>>,
    pub(super) unlimited: Option<Spanned<bool>>,
    pub(super) replaces: Option<Vec<Spanned<Replaces>>>,
    pub(super) algorithm: Option<Spanned<String>>,
    pub(super) burst: Option<Spanned<u64>>,
}

/// A rule that is left out where this one applies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: Option<String>,
}

/// How many folders may be in one another.
const MAX_DEPTH: usize = 16;

impl Source {
    /// Returns the file, or all files of a directory and those below, sorted by name. Without any file it is an error,
    /// because nothing would be limited.
    pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
        if !fs::metadata(path)?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut files = Vec::new();
        gather(path, 0, &mut files)?;
        if files.is_empty() {
            let message = "there is no file in it or below, but for names that begin with a dot: \
                           put files of rules there, such as config.yaml with `domain: edge`";
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        files.sort_unstable();
        Ok(files)
    }

    /// The documents of the file.
    pub(super) fn parse(&self) -> Result<Vec<Root>, FileError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let parsed = serde_saphyr::from_multiple_with_options(&self.text, options);
        let roots: Vec<Root> = parsed.map_err(|error| {
            let said = message(error.without_snippet());
            let error = self.error(error.location(), said.escape_debug());
            // What is no rule may be anything, also the address of a store.
            let (snippet, _) = masked(self.line(error.line), 0);
            FileError { snippet: shorten(&snippet, 120), ..error }
        })?;
        match roots.is_empty() {
            true => {
                Err(self
                    .error(None, "there are no rules in it: write `domain: edge` and descriptors"))
            }
            false => Ok(roots),
        }
    }

    /// An error at a place of this file.
    pub(super) fn error(
        &self,
        at: impl Into<Option<Location>>,
        message: impl fmt::Display,
    ) -> FileError {
        let (line, column) = at.into().map_or((0, 0), |at| (at.line(), at.column()));
        let snippet = self.line(line);
        FileError {
            message: message.to_string(),
            file: self.file.clone(),
            line,
            column,
            snippet: shorten(snippet, 120),
        }
    }

    /// A line by its number, or nothing if there is none.
    fn line(&self, number: u64) -> &str {
        let place = usize::try_from(number).unwrap_or(usize::MAX).checked_sub(1);
        place.and_then(|place| self.text.lines().nth(place)).unwrap_or_default()
    }
}

/// Every file in a folder and below, whatever its name ends in, as envoyproxy/ratelimit has it. Links are followed, as
/// Kubernetes makes them, and what they lead to is in folders that begin with a dot, as do files of editors.
fn gather(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        let message = format!("folders are more than {MAX_DEPTH} deep, or go round in circles");
        return Err(io::Error::other(message));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            gather(&path, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// At most `length` characters of what somebody wrote, safe to print.
pub(super) fn shorten(text: &str, length: usize) -> String {
    let mut short: String = text.chars().take(length).flat_map(char::escape_debug).collect();
    if text.chars().nth(length).is_some() {
        short.push('…');
    }
    short
}

impl std::error::Error for FileError {}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.snippet.is_empty() {
            write!(f, "\n  | {}", self.snippet)?;
        }
        Ok(())
    }
}

/// Reads a text that may be anything as a file.
pub(crate) fn read_bytes(text: &str) {
    let source = Source { file: "fuzz.yaml".into(), text: text.to_owned() };
    drop(super::Rules::parse(&[source], super::Options::default()));
}
