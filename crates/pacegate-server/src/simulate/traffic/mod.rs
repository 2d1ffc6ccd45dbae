//! Traffic from logs: several files become one sequence of requests in the order of time.

mod combined;
mod csv;
mod format;
pub(crate) mod instant;
mod json;
mod lines;
mod open;
mod row;

use std::{fmt, io};

use self::lines::Lines;
pub(crate) use self::{
    format::{Format, Map},
    open::{Place, Progress},
    row::Attributes,
};

/// Which logs, and how to read them.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Merged by time.
    pub(crate) places: Vec<Place>,
    pub(crate) format: Format,
    pub(crate) map: Map,
    /// Microseconds by which lines of one file may be out of order.
    pub(crate) window: u64,
}

/// What was seen of the logs.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Seen {
    /// Requests that the lines tell of.
    pub(crate) requests: u64,
    /// Lines, whether they could be read or not.
    pub(crate) lines: u64,
    /// Lines that could not be read.
    pub(crate) malformed: u64,
    /// Where the first of those are.
    pub(crate) malformed_examples: Vec<String>,
    /// Lines that came too late to be put in order, and count when they came.
    pub(crate) late: u64,
    /// For each attribute, how many requests have it.
    #[serde(skip)]
    pub(crate) with: Vec<u64>,
}

/// A request of a log, as long as the next is not read.
pub(crate) struct Entry<'a> {
    /// Microseconds since the epoch; never less than that of the entry before.
    pub(crate) at: u64,
    lines: &'a Lines,
}

/// Why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The file is not there, or breaks off.
    #[error("cannot read {0}")]
    Read(String, #[source] io::Error),
    /// The first lines are of no format that is known.
    #[error(
        "{0} looks like no log that is known: its first lines are neither common, JSON nor CSV"
    )]
    Unknown(String),
    /// There is nothing in any of them.
    #[error("there is nothing to replay: {0} empty")]
    Empty(String),
    /// There is no line that says anything.
    #[error("no line of {lines} could be read; the first: {first}")]
    AllMalformed {
        /// How many there are.
        lines: u64,
        /// Where one of them is, and what is wrong with it.
        first: String,
    },
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    NotCommon,
    NotJson,
    NotCsv,
    Time,
    TooLong,
    LongValue,
    Unclosed,
}

impl Spec {
    /// Goes through all requests in the order of time. `each` tells whether to go on.
    pub(crate) fn read(
        &self,
        attributes: &Attributes,
        progress: &Progress,
        mut each: impl FnMut(&Entry<'_>) -> bool,
    ) -> Result<Seen, Trouble> {
        let open = |place| Lines::open(place, self, attributes, progress);
        let mut logs: Vec<Lines> = self.places.iter().map(open).collect::<Result<_, _>>()?;
        let mut seen = Seen { with: vec![0; attributes.0.len()], ..Seen::default() };
        let mut now = 0;
        'all: while let Some((log, until)) = first(&logs) {
            let lines = &mut logs[log];
            while let Some(at) = lines.at().filter(|at| (*at, log) <= until) {
                seen.requests += 1;
                seen.late += u64::from(at < now);
                now = now.max(at);
                for (attribute, count) in seen.with.iter_mut().enumerate() {
                    *count += u64::from(lines.value(attribute).is_some());
                }
                if !each(&Entry { at: now, lines }) {
                    break 'all;
                }
                lines.advance()?;
            }
        }
        if seen.requests == 0 && logs.iter().all(|lines| lines.counts.malformed == 0) {
            return Err(Trouble::Empty(match &*self.places {
                [place] => format!("{} is", place.name()),
                places => format!("all {} logs are", places.len()),
            }));
        }
        seen.count(&logs)
    }
}

/// The log whose next row is the earliest, and up to when it stays that.
fn first(logs: &[Lines]) -> Option<(usize, (u64, usize))> {
    let heads = || logs.iter().enumerate().filter_map(|(log, lines)| Some((lines.at()?, log)));
    let (_, log) = heads().min()?;
    let until = heads().filter(|(_, other)| *other != log).min();
    Some((log, until.unwrap_or((u64::MAX, usize::MAX))))
}

impl Entry<'_> {
    /// The value of an attribute, by its place.
    #[inline]
    pub(crate) fn value(&self, attribute: usize) -> Option<&[u8]> {
        self.lines.value(attribute)
    }
}

impl Seen {
    fn count(mut self, logs: &[Lines]) -> Result<Self, Trouble> {
        for lines in logs {
            self.lines += lines.counts.lines;
            self.malformed += lines.counts.malformed;
            let examples = lines.counts.examples.iter().cloned();
            let room = MAX_EXAMPLES.saturating_sub(self.malformed_examples.len());
            self.malformed_examples.extend(examples.take(room));
        }
        match self.malformed_examples.first() {
            Some(first) if self.requests == 0 => {
                Err(Trouble::AllMalformed { lines: self.lines, first: first.clone() })
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
            Self::NotCsv => "no columns are known",
            Self::Time => "no instant that can be read",
            Self::TooLong => "longer than 1 MiB",
            Self::LongValue => "a value is longer than 1,024 bytes",
            Self::Unclosed => "a quote is not closed",
        })
    }
}
