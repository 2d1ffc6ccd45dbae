//! Parsed log lines: a timestamp and the attributes that policies use.

use std::{borrow::Cow, net::IpAddr};

use pacegate_http::resolve::plain_host;

use super::{Malformed, format::COST};

/// Names of the attributes in use; the index is the position of the value in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(pub(crate) Vec<String>);

/// Rows and the text that they refer to.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The original lines.
    pub(super) text: Vec<u8>,
    /// Values that differ from their text in the line, such as decoded ones.
    extra: Vec<u8>,
    rows: Vec<Row>,
    spans: Vec<TextSpan>,
    /// Number of spans per row.
    width: usize,
    /// Attributes whose values are normalised.
    spellings: Vec<Spelling>,
    /// Index of the cost among the attributes.
    cost: Option<usize>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Timestamp.
    pub(super) at: u64,
    /// Index of its first span.
    first: u32,
    /// Position of its line.
    pub(super) line: TextSpan,
}

/// A range of the text or of `extra`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextSpan {
    start: u32,
    length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Any,
    Path,
    Host,
    Address,
}

/// Collects the values that a parser finds in a line.
#[derive(Debug)]
pub(super) struct Values<'a> {
    rows: &'a mut Rows,
    /// Offset of the line in the text.
    base: u32,
    first: usize,
    /// True if a value is longer than the server accepts.
    too_long: bool,
}

/// Maximum length of a value in bytes: the default limit of the server. Keys consist of values.
const MAX_VALUE: usize = 1_024;

const ABSENT: TextSpan = TextSpan { start: 0, length: u32::MAX };
/// Marks a span in `extra`.
const ADDED: u32 = 1 << 31;

impl TextSpan {
    /// Creates a span of the text. Batches are far smaller than the maximum offset.
    pub(super) fn new(start: usize, length: usize) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX >> 2);
        Self { start: small(start), length: small(length) }
    }

    /// Returns the range in the text.
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.length as usize
    }
}

impl Rows {
    pub(super) fn new(attributes: &Attributes) -> Self {
        let spelling = |name: &String| match name.as_str() {
            "path" => Spelling::Path,
            "host" => Spelling::Host,
            "ip" => Spelling::Address,
            _ => Spelling::Any,
        };
        let spellings: Vec<_> = attributes.0.iter().map(spelling).collect();
        let cost = attributes.0.iter().position(|name| name == COST);
        Self { width: spellings.len(), spellings, cost, ..Self::default() }
    }

    pub(super) fn clear(&mut self) {
        self.extra.clear();
        self.rows.clear();
        self.spans.clear();
    }

    pub(super) fn as_slice(&self) -> &[Row] {
        &self.rows
    }

    /// Parses the line at `line` with `read`, which returns its timestamp. Adds a row if that succeeds.
    pub(super) fn read(
        &mut self,
        line: std::ops::Range<usize>,
        read: impl FnOnce(&[u8], &mut Values<'_>) -> Result<u64, Malformed>,
    ) -> Result<u64, Malformed> {
        let first = self.spans.len();
        self.spans.resize(first + self.width, ABSENT);
        // Move the text out so that the parser can borrow it while spans are written.
        let text = std::mem::take(&mut self.text);
        let span = TextSpan::new(line.start, line.len());
        let mut values = Values { base: span.start, first, too_long: false, rows: self };
        let found = read(&text[line], &mut values);
        let too_long = values.too_long;
        self.text = text;
        match found.and_then(|at| if too_long { Err(Malformed::LongValue) } else { Ok(at) }) {
            Ok(at) => {
                let start = u32::try_from(first).unwrap_or(u32::MAX);
                self.rows.push(Row { at, first: start, line: span });
                let row = self.rows.len() - 1;
                let cost = self.cost.and_then(|cost| self.value(row, cost));
                if cost.is_some_and(|cost| parse_cost(cost).is_none()) {
                    self.rows.pop();
                    self.spans.truncate(first);
                    return Err(Malformed::Cost);
                }
                Ok(at)
            }
            Err(error) => {
                self.spans.truncate(first);
                Err(error)
            }
        }
    }

    /// Sorts the rows by time; rows with equal timestamps stay in order.
    pub(super) fn sort(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.at) {
            self.rows.sort_by_key(|row| row.at);
        }
    }

    /// Returns the value of an attribute in a row, by their indexes.
    pub(super) fn value(&self, row: usize, attribute: usize) -> Option<&[u8]> {
        let span = self.spans[self.rows[row].first as usize + attribute];
        if span.length == ABSENT.length {
            return None;
        }
        let place = TextSpan { start: span.start & !ADDED, ..span }.range();
        let text = if span.start & ADDED == 0 { &self.text } else { &self.extra };
        Some(&text[place])
    }
}

/// Parses the cost of a request.
pub(crate) fn parse_cost(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

impl Values<'_> {
    /// Stores a value that appears unchanged in the line.
    pub(super) fn put(&mut self, attribute: usize, line: &[u8], place: std::ops::Range<usize>) {
        let start = self.base + TextSpan::new(place.start, 0).start;
        let value = &line[place];
        let spelt = match self.rows.spellings[attribute] {
            Spelling::Any => Cow::Borrowed(value),
            spelling => spelling.of(value),
        };
        let span = match spelt {
            // Always a prefix of the value.
            Cow::Borrowed(same) => TextSpan { start, ..TextSpan::new(0, same.len()) },
            Cow::Owned(other) => self.added(&other),
        };
        self.set(attribute, span);
    }

    /// Stores a value whose text differs from the line.
    pub(super) fn put_meant(&mut self, attribute: usize, value: &[u8]) {
        let span = match self.rows.spellings[attribute].of(value) {
            Cow::Borrowed(same) => self.added(same),
            Cow::Owned(other) => self.added(&other),
        };
        self.set(attribute, span);
    }

    fn set(&mut self, attribute: usize, span: TextSpan) {
        self.too_long |= span.length as usize > MAX_VALUE;
        self.rows.spans[self.first + attribute] = span;
    }

    fn added(&mut self, value: &[u8]) -> TextSpan {
        let span = TextSpan::new(self.rows.extra.len(), value.len());
        self.rows.extra.extend_from_slice(value);
        TextSpan { start: span.start | ADDED, ..span }
    }
}

impl Spelling {
    /// Normalises a value in the same way as the server, so that policies see the same.
    fn of(self, value: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Any => Cow::Borrowed(value),
            // Remove the query string. Each policy normalises the path by its own settings.
            Self::Path => {
                let end = value.iter().position(|byte| matches!(byte, b'?' | b'#'));
                Cow::Borrowed(&value[..end.unwrap_or(value.len())])
            }
            Self::Host => plain_host(value),
            Self::Address if value.contains(&b':') => {
                let address = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                address.map_or(Cow::Borrowed(value), |address: IpAddr| {
                    Cow::Owned(address.to_canonical().to_string().into_bytes())
                })
            }
            Self::Address => Cow::Borrowed(value),
        }
    }
}
