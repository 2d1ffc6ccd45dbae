//! What a line of a log becomes: an instant and the attributes that policies look at.

use std::{borrow::Cow, net::IpAddr};

use pacegate_http::resolve::plain_host;

use super::Malformed;

/// The attributes that are looked at, each with the place of its value in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(pub(crate) Vec<String>);

/// Rows and the text that they refer to.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Lines as they came.
    pub(super) text: Vec<u8>,
    /// Values that are not written in a line as they are meant.
    extra: Vec<u8>,
    rows: Vec<Row>,
    spans: Vec<Span>,
    /// Spans of each row.
    width: usize,
    /// Attributes that are to be spelt in one way only.
    spellings: Vec<Spelling>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// When.
    pub(super) at: u64,
    /// Where its first span is.
    first: u32,
    /// Where its line is.
    pub(super) line: Span,
}

/// A part of the text, or of what was added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
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

/// Where a reader of lines puts what it finds in one.
#[derive(Debug)]
pub(super) struct Values<'a> {
    rows: &'a mut Rows,
    /// Where the line begins in the text.
    base: u32,
    first: usize,
    /// Whether a value is longer than the service takes.
    too_long: bool,
}

/// The longest value, in bytes: what the service takes unless it is configured otherwise. Keys are made of them.
const MAX_VALUE: usize = 1_024;

const ABSENT: Span = Span { start: 0, length: u32::MAX };
/// Marks a span that is in `extra`.
const ADDED: u32 = 1 << 31;

impl Span {
    /// A span of the text. Batches are far smaller than what this can say.
    pub(super) fn new(start: usize, length: usize) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX >> 2);
        Self { start: small(start), length: small(length) }
    }

    /// Where it is in the text of lines.
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
        Self { width: spellings.len(), spellings, ..Self::default() }
    }

    pub(super) fn clear(&mut self) {
        self.extra.clear();
        self.rows.clear();
        self.spans.clear();
    }

    pub(super) fn as_slice(&self) -> &[Row] {
        &self.rows
    }

    /// Reads the line at `line` with `read`, which gives its instant; if it does, the line is a row.
    pub(super) fn read(
        &mut self,
        line: std::ops::Range<usize>,
        read: impl FnOnce(&[u8], &mut Values<'_>) -> Result<u64, Malformed>,
    ) -> Result<u64, Malformed> {
        let first = self.spans.len();
        self.spans.resize(first + self.width, ABSENT);
        // The text is lent to the reader while the spans are written.
        let text = std::mem::take(&mut self.text);
        let span = Span::new(line.start, line.len());
        let mut values = Values { base: span.start, first, too_long: false, rows: self };
        let found = read(&text[line], &mut values);
        let too_long = values.too_long;
        self.text = text;
        match found.and_then(|at| if too_long { Err(Malformed::LongValue) } else { Ok(at) }) {
            Ok(at) => {
                let first = u32::try_from(first).unwrap_or(u32::MAX);
                self.rows.push(Row { at, first, line: span });
                Ok(at)
            }
            Err(error) => {
                self.spans.truncate(first);
                Err(error)
            }
        }
    }

    /// Puts the rows in the order of their instants; those of one instant stay as they came.
    pub(super) fn sort(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.at) {
            self.rows.sort_by_key(|row| row.at);
        }
    }

    /// The value of an attribute in a row, by their places.
    pub(super) fn value(&self, row: usize, attribute: usize) -> Option<&[u8]> {
        let span = self.spans[self.rows[row].first as usize + attribute];
        if span.length == ABSENT.length {
            return None;
        }
        let place = Span { start: span.start & !ADDED, ..span }.range();
        let text = if span.start & ADDED == 0 { &self.text } else { &self.extra };
        Some(&text[place])
    }
}

impl Values<'_> {
    /// A value that stands in the line like this.
    pub(super) fn put(&mut self, attribute: usize, line: &[u8], place: std::ops::Range<usize>) {
        let start = self.base + Span::new(place.start, 0).start;
        let value = &line[place];
        let spelt = match self.rows.spellings[attribute] {
            Spelling::Any => Cow::Borrowed(value),
            spelling => spelling.of(value),
        };
        let span = match spelt {
            // Always a beginning of the value.
            Cow::Borrowed(same) => Span { start, ..Span::new(0, same.len()) },
            Cow::Owned(other) => self.added(&other),
        };
        self.set(attribute, span);
    }

    /// A value that the line writes in another way.
    pub(super) fn put_meant(&mut self, attribute: usize, value: &[u8]) {
        let span = match self.rows.spellings[attribute].of(value) {
            Cow::Borrowed(same) => self.added(same),
            Cow::Owned(other) => self.added(&other),
        };
        self.set(attribute, span);
    }

    fn set(&mut self, attribute: usize, span: Span) {
        self.too_long |= span.length as usize > MAX_VALUE;
        self.rows.spans[self.first + attribute] = span;
    }

    fn added(&mut self, value: &[u8]) -> Span {
        let span = Span::new(self.rows.extra.len(), value.len());
        self.rows.extra.extend_from_slice(value);
        Span { start: span.start | ADDED, ..span }
    }
}

impl Spelling {
    /// As the service spells it, so that policies see the same.
    fn of(self, value: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Any => Cow::Borrowed(value),
            // Without the query. Each policy normalizes the rest as it wants.
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
