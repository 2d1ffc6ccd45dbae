//! Traffic from logs: merges several files into one sequence of requests, sorted by time.

mod combined;
mod csv;
mod format;
pub(crate) mod instant;
mod json;
mod lines;
mod open;
mod row;

use std::{fmt, io, time::Duration};

use self::lines::Lines;
pub(crate) use self::{
    format::COST,
    row::{Attributes, parse_cost},
};
pub use self::{
    format::{Format, Map, MapError},
    open::{Place, Progress},
};

/// The logs to read and how to parse them.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Merged by time.
    pub places: Vec<Place>,
    /// Format of the logs.
    pub format: Format,
    /// Fields of the attributes.
    pub map: Map,
    /// Maximum time by which lines of one file may be out of order.
    pub window: Duration,
}

/// Statistics about the logs.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Seen {
    /// Number of requests.
    pub requests: u64,
    /// Number of lines, including malformed ones.
    pub lines: u64,
    /// Number of malformed lines.
    pub malformed: u64,
    /// Position and error of the first malformed lines.
    pub malformed_examples: Vec<String>,
    /// Lines that were out of order by more than the window; each counts at the time of the line before it.
    pub late: u64,
    /// The logs, in the given order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRequests>,
    /// For each attribute, the number of requests that have it.
    #[serde(skip)]
    pub with: Vec<u64>,
}

/// The number of requests of one log.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FileRequests {
    pub(crate) name: String,
    pub(crate) requests: u64,
}

/// A request of a log, valid until the next one is read.
pub(crate) struct LogRequest<'a> {
    /// Microseconds since the Unix epoch; never less than that of the previous entry.
    pub at: u64,
    lines: &'a Lines,
}

/// Reasons why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// Opening or reading the file failed.
    #[error("cannot read {0}")]
    Read(String, #[source] io::Error),
    /// The format of the first lines is unknown.
    #[error("unknown log format of {0}: expected the common or combined format, JSON lines or CSV")]
    Unknown(String),
    /// All logs are empty.
    #[error("nothing to replay: {0} empty")]
    Empty(String),
    /// All lines are malformed.
    #[error("none of {lines} lines could be parsed; the first: {first}")]
    AllMalformed {
        /// Number of lines.
        lines: u64,
        /// Position and error of the first one.
        first: String,
    },
}

/// The error in a malformed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    NotCommon,
    NotJson,
    NotCsv,
    Time,
    TooLong,
    LongValue,
    Cost,
    Unclosed,
}

impl Spec {
    /// Reads all requests in order of time, until `each` returns false.
    pub(crate) fn read(
        &self,
        attributes: &Attributes,
        progress: &Progress,
        mut each: impl FnMut(&LogRequest<'_>) -> bool,
    ) -> Result<Seen, TrafficError> {
        let open = |place| Lines::open(place, self, attributes, progress);
        let mut logs: Vec<Lines> = self.places.iter().map(open).collect::<Result<_, _>>()?;
        let file = |place: &Place| FileRequests { name: place.name(), requests: 0 };
        let files = self.places.iter().map(file).collect();
        let mut seen = Seen { with: vec![0; attributes.0.len()], files, ..Seen::default() };
        let mut now = 0;
        'all: while let Some((log, until)) = first(&logs) {
            let lines = &mut logs[log];
            while let Some(at) = lines.at().filter(|at| (*at, log) <= until) {
                seen.requests += 1;
                seen.files[log].requests += 1;
                seen.late += u64::from(at < now);
                now = now.max(at);
                for (attribute, count) in seen.with.iter_mut().enumerate() {
                    *count += u64::from(lines.value(attribute).is_some());
                }
                if !each(&LogRequest { at: now, lines }) {
                    break 'all;
                }
                lines.advance()?;
            }
        }
        if seen.requests == 0 && logs.iter().all(|lines| lines.counts.malformed == 0) {
            return Err(TrafficError::Empty(match &*self.places {
                [place] => format!("{} is", place.name()),
                places => format!("all {} logs are", places.len()),
            }));
        }
        seen.count(&logs)
    }
}

/// Returns the log with the earliest next row, and the position (time, log) of the row that comes after it in
/// another log.
fn first(logs: &[Lines]) -> Option<(usize, (u64, usize))> {
    let heads = || logs.iter().enumerate().filter_map(|(log, lines)| Some((lines.at()?, log)));
    let (_, log) = heads().min()?;
    let until = heads().filter(|(_, other)| *other != log).min();
    Some((log, until.unwrap_or((u64::MAX, usize::MAX))))
}

impl LogRequest<'_> {
    /// Returns the value of an attribute, by its index.
    #[inline]
    pub(crate) fn value(&self, attribute: usize) -> Option<&[u8]> {
        self.lines.value(attribute)
    }
}

impl Seen {
    fn count(mut self, logs: &[Lines]) -> Result<Self, TrafficError> {
        for lines in logs {
            self.lines += lines.counts.lines;
            self.malformed += lines.counts.malformed;
            let examples = lines.counts.examples.iter().cloned();
            let room = MAX_EXAMPLES.saturating_sub(self.malformed_examples.len());
            self.malformed_examples.extend(examples.take(room));
        }
        match self.malformed_examples.first() {
            Some(first) if self.requests == 0 => {
                Err(TrafficError::AllMalformed { lines: self.lines, first: first.clone() })
            }
            _ => Ok(self),
        }
    }
}

const MAX_EXAMPLES: usize = 5;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCommon => "not in the common or combined format",
            Self::NotJson => "not JSON",
            Self::NotCsv => "unknown columns",
            Self::Time => "invalid timestamp",
            Self::TooLong => "longer than 1 MiB",
            Self::LongValue => "value longer than 1,024 bytes",
            Self::Cost => "cost that is not a whole number",
            Self::Unclosed => "unclosed quote",
        })
    }
}
