//! The mistakes in a configuration, with their positions.

use std::fmt::{self, Display};

use serde_saphyr::Location;

use super::{
    mask::{masked_in, masked_message},
    spanned::Forms,
};
use crate::envoy::FileError;

/// The mistakes in a configuration, up to [`ConfigError::MAX_PROBLEMS`].
///
/// Prints as one paragraph for each problem, with its line and a caret. Secrets in that line are masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    problems: Vec<Diagnostic>,
    left_out: usize,
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The mistake and its correction.
    pub message: String,
    /// The position; `None` for the file as a whole.
    pub position: Option<Position>,
    /// The masked line, and the position of the caret.
    shown: Option<Shown>,
}

/// A position in a file. Both numbers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The character in the line.
    pub column: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    text: String,
    before: usize,
    width: usize,
}

/// The mistakes found in a file so far.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    file: &'a str,
    text: &'a str,
    found: Vec<Diagnostic>,
    left_out: usize,
}

impl ConfigError {
    /// The maximum number of mistakes in one report.
    pub const MAX_PROBLEMS: usize = 20;

    /// The file, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the problems in the order of their positions.
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }

    /// Returns the number of mistakes beyond the maximum.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Creates an error for the whole file.
    pub(crate) fn whole(file: &str, message: impl Display) -> Self {
        let problem = Diagnostic { message: message.to_string(), position: None, shown: None };
        Self { file: file.to_owned(), problems: vec![problem], left_out: 0 }
    }

    /// Converts an error in a file of envoyproxy/ratelimit with this text.
    pub(super) fn foreign(error: &FileError, text: &str) -> Self {
        let FileError { line, column, .. } = *error;
        let is_known = line > 0;
        let problem = Diagnostic {
            message: masked_message(&error.message, text, line),
            position: is_known.then_some(Position { line, column }),
            shown: is_known.then(|| Shown::new(text, Position { line, column }, 1)).flatten(),
        };
        let file = error.file.display().to_string();
        Self { file, problems: vec![problem], left_out: 0 }
    }
}

impl<'a> Problems<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, found: Vec::new(), left_out: 0 }
    }

    pub(crate) fn add(&mut self, location: Location, message: impl Display) {
        if self.found.len() == ConfigError::MAX_PROBLEMS {
            self.left_out += 1;
            return;
        }
        let position = Position { line: location.line(), column: location.column() };
        let known = position.line > 0;
        let width = usize::try_from(location.span().len()).unwrap_or(1);
        let shown = known.then(|| Shown::new(self.text, position, width)).flatten();
        let message = masked_message(&message.to_string(), self.text, position.line);
        self.found.push(Diagnostic { message, position: known.then_some(position), shown });
    }

    /// Returns the value, or adds a problem and returns `None`.
    pub(crate) fn take<T, E: Display>(
        &mut self,
        location: Location,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.add(location, error)).ok()
    }

    /// Adds the problem that a value is in none of the forms of `T`.
    pub(super) fn expected<T: Forms>(&mut self, location: Location) {
        self.add(location, format_args!("expected {}", T::EXPECTED));
    }

    /// Returns the text at a position.
    pub(crate) fn written(&self, location: Location) -> Option<&'a str> {
        let span = location.span();
        let start = usize::try_from(span.byte_offset()?).ok()?;
        let length = usize::try_from(span.byte_len()?).ok()?;
        self.text.get(start..start.checked_add(length)?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the number of mistakes, including those beyond the maximum.
    pub(crate) fn count(&self) -> usize {
        self.found.len() + self.left_out
    }

    /// Returns the value, or the problems if any were found.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, ConfigError> {
        let Self { file, mut found, left_out, .. } = self;
        found.sort_by_key(|problem| problem.position.map(|at| (at.line, at.column)));
        match value {
            Some(value) if found.is_empty() => Ok(value),
            _ => Err(ConfigError { file: file.to_owned(), problems: found, left_out }),
        }
    }
}

/// The number of characters shown of a long line, and how many of them are before the position of the problem.
const SHOWN: usize = 100;
const BEFORE: usize = 60;

impl Shown {
    fn new(text: &str, position: Position, width: usize) -> Option<Self> {
        let line = usize::try_from(position.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(position.column).ok()?.checked_sub(1)?;
        let (masked, column) = masked_in(text, line, column)?;
        let skipped = if column > SHOWN - 20 { column - BEFORE } else { 0 };
        let printable = |char: char| if char.is_control() { ' ' } else { char };
        let text: String = masked.chars().skip(skipped).take(SHOWN).map(printable).collect();
        let before = column - skipped;
        let room = text.chars().count().saturating_sub(before).max(1);
        Some(Self { before, width: width.clamp(1, room), text: text.trim_end().to_owned() })
    }
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            problem.write(f, &self.file)?;
        }
        match self.left_out {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl Diagnostic {
    fn write(&self, f: &mut fmt::Formatter<'_>, file: &str) -> fmt::Result {
        let Some(Position { line, column }) = self.position else {
            return write!(f, "{}\n --> {file}", self.message);
        };
        write!(f, "{}\n --> {file}:{line}:{column}", self.message)?;
        let Some(Shown { text, before, width }) = &self.shown else { return Ok(()) };
        let number = line.to_string();
        let margin = number.len();
        write!(f, "\n{:margin$} |\n{number} | {text}\n{:margin$} | ", "", "")?;
        write!(f, "{:before$}{:^<width$}", "", "")
    }
}

impl std::error::Error for ConfigError {}
