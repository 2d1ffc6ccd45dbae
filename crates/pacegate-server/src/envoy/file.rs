//! Rule files of envoyproxy/ratelimit, and errors with their location.
//!
//! Every field of envoyproxy/ratelimit is accepted. Extensions: several documents in a file; in a `rate_limit` an
//! `algorithm`, a `burst`, and a `period` or any duration as the `unit` (`30s`, `5m`); beside it `rate_limits`, a list
//! of limits that all apply, `failure`, the failure mode, and `record_in_full`, which records hits beyond the limit.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

pub(super) use crate::config::shorten_to as shorten;
use crate::config::{masked, message};

/// The path and the text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleFile {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

/// An error in a file, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    pub(crate) message: String,
    pub(crate) file: PathBuf,
    /// From 1; 0 for the file as a whole.
    pub(crate) line: u64,
    /// From 1; 0 for the file as a whole.
    pub(crate) column: u64,
    /// The line, shortened; empty for the file as a whole.
    pub(crate) snippet: String,
}

/// A document: the descriptors of a domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleDocument {
    pub(super) domain: Spanned<String>,
    pub(super) descriptors: Option<Vec<Spanned<RuleDescriptor>>>,
}

/// A key, and optionally a value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleDescriptor {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<Spanned<String>>,
    pub(super) rate_limit: Option<Spanned<RuleLimit>>,
    pub(super) rate_limits: Option<Spanned<Vec<Spanned<RuleLimit>>>>,
    pub(super) descriptors: Option<Vec<Spanned<Self>>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) quota_mode: Option<bool>,
    pub(super) share_threshold: Option<Spanned<bool>>,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
    pub(super) failure: Option<Spanned<String>>,
    pub(super) record_in_full: Option<bool>,
    pub(super) detailed_metric: Option<bool>,
    pub(super) value_to_metric: Option<bool>,
}

/// A limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleLimit {
    pub(super) name: Option<Spanned<String>>,
    pub(super) unit: Option<Spanned<String>>,
    pub(super) period: Option<Spanned<String>>,
    pub(super) requests_per_unit: Option<Spanned<u64>>,
    pub(super) unlimited: Option<Spanned<bool>>,
    pub(super) replaces: Option<Vec<Spanned<Replaces>>>,
    pub(super) algorithm: Option<Spanned<String>>,
    pub(super) burst: Option<Spanned<u64>>,
}

/// A rule that does not apply where this one does.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: Option<String>,
}

/// Maximum depth of nested directories.
const MAX_DEPTH: usize = 16;

impl RuleFile {
    /// Returns the file, or all files below a directory in the order of their names. No file is an error: nothing would
    /// be limited.
    pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
        if !fs::metadata(path)?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut files = Vec::new();
        collect_files(path, 0, &mut files)?;
        if files.is_empty() {
            let message = "the directory contains no rule files (hidden files are ignored): add one, such as \
                           config.yaml with `domain: edge`";
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Parses the documents of the file.
    pub(super) fn parse(&self) -> Result<Vec<RuleDocument>, FileError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let parsed = serde_saphyr::from_multiple_with_options(&self.text, options);
        let roots: Vec<RuleDocument> = parsed.map_err(|error| {
            let said = message(error.without_snippet());
            let error = self.error(error.location(), said.escape_debug());
            // The line may be anything, even the URL of a store.
            let (snippet, _) = masked(self.line(error.line), 0);
            FileError { snippet: shorten(&snippet, 120), ..error }
        })?;
        match roots.is_empty() {
            true => {
                Err(self
                    .error(None, "the file has no rules: expected `domain: edge` and descriptors"))
            }
            false => Ok(roots),
        }
    }

    /// Creates an error at a location of this file.
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

    /// Returns a line by its number, or an empty text.
    fn line(&self, number: u64) -> &str {
        let place = usize::try_from(number).unwrap_or(usize::MAX).checked_sub(1);
        place.and_then(|place| self.text.lines().nth(place)).unwrap_or_default()
    }
}

/// Collects every file below a directory with any extension, as envoyproxy/ratelimit does. Follows links, which
/// Kubernetes uses, and skips hidden files and directories.
fn collect_files(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        let message =
            format!("directories are nested more than {MAX_DEPTH} levels deep, or form a cycle");
        return Err(io::Error::other(message));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            collect_files(&path, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
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

/// Parses arbitrary text as a file, for fuzzing.
pub(crate) fn read_bytes(text: &str) {
    let source = RuleFile { file: "fuzz.yaml".into(), text: text.to_owned() };
    drop(super::Rules::parse(&[source], &super::EnvoyOptions::default()));
}
