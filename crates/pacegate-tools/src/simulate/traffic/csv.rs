//! Comma-separated values, with column names in the first line.

use std::ops::Range;

use memchr::{memchr, memchr2};
use smallvec::SmallVec;

use super::{
    Malformed,
    format::{End, Map, TIME},
    instant::Instants,
    row::{Attributes, Values},
};

/// Parses values by column.
#[derive(Debug)]
pub(super) struct Csv {
    instants: Instants,
    names: Vec<Vec<String>>,
    time: Vec<String>,
    /// The column assignment, once the heading is parsed.
    columns: Option<ColumnMap>,
    /// The separator, detected from the first line.
    separator: Option<u8>,
}

#[derive(Debug)]
struct ColumnMap {
    time: Option<usize>,
    /// For each column, the indexes of the attributes that it provides.
    attributes: Vec<SmallVec<[usize; 1]>>,
}

/// A value without its quotes, and whether quotes within it are doubled.
struct Cell {
    place: Range<usize>,
    doubled: bool,
}

/// Maximum number of columns.
const MAX_COLUMNS: usize = 1_024;

impl Csv {
    pub(super) fn new(attributes: &Attributes, map: &Map) -> Self {
        let names: Vec<_> = attributes.0.iter().map(|name| map.candidates(name)).collect();
        let time = map.candidates(TIME);
        // If the map has only numbers, there is no line with column names.
        let numbered =
            map.fields().next().is_some() && map.fields().all(|field| number(field).is_some());
        let columns = numbered.then(|| {
            let place = |names: &[String]| names.first().and_then(|name| number(name));
            ColumnMap::new(place(&time), names.iter().map(|names| place(names)))
        });
        Self { instants: Instants::default(), names, time, columns, separator: None }
    }

    /// Returns true if a line looks like column names that include a timestamp, or, if the map has numbers,
    /// like values with a timestamp in the given column.
    pub(super) fn fits(line: &[u8], map: &Map) -> bool {
        let mut csv = Self::new(&Attributes::default(), map);
        let named = csv.is_heading(line);
        let Some(time) = csv.columns.as_ref().and_then(|columns| columns.time) else {
            return false;
        };
        let instant = || cells(line, separator(line)).nth(time);
        named || instant().is_some_and(|cell| csv.instants.any(&line[cell.place]).is_some())
    }

    /// Finds the end of the entry at the start of the text: the first line break outside a quoted value.
    pub(super) fn end(&self, text: &[u8]) -> End {
        let Some(line) = memchr(b'\n', text) else { return End::Missing };
        if memchr(b'"', &text[..line]).is_none() {
            return End::At(line);
        }
        let separator = self.separator.unwrap_or_else(|| separator(&text[..line]));
        let mut start = 0;
        loop {
            if text.get(start) == Some(&b'"') {
                let Some(close) = closing(text, start) else { return End::Quoted };
                start = close + 1;
            }
            let Some(end) = memchr2(separator, b'\n', &text[start..]) else { return End::Missing };
            start += end + 1;
            if text[start - 1] == b'\n' {
                return End::At(start - 1);
            }
        }
    }

    /// Parses the line with the column names, if it comes first.
    pub(super) fn is_heading(&mut self, line: &[u8]) -> bool {
        if self.columns.is_some() {
            return false;
        }
        let separator = *self.separator.insert(separator(line));
        let names: Vec<String> = cells(line, separator)
            .map(|cell| String::from_utf8_lossy(&line[cell.place]).trim().to_lowercase())
            .collect();
        let place = |wanted: &[String]| {
            let is = |wanted: &String| names.iter().position(|name| *name == wanted.to_lowercase());
            wanted.iter().find_map(is)
        };
        let attributes = self.names.iter().map(|names| place(names));
        self.columns = Some(ColumnMap::new(place(&self.time), attributes));
        true
    }

    pub(super) fn read(&mut self, line: &[u8], values: &mut Values<'_>) -> Result<u64, Malformed> {
        let columns = self.columns.as_ref().ok_or(Malformed::NotCsv)?;
        let separator = *self.separator.get_or_insert_with(|| separator(line));
        let mut at = None;
        for (column, cell) in cells(line, separator).enumerate() {
            if columns.time == Some(column) {
                at = self.instants.any(&line[cell.place.clone()]);
            }
            for &attribute in columns.attributes.get(column).into_iter().flatten() {
                match &line[cell.place.clone()] {
                    b"" | b"-" => {}
                    value if cell.doubled => values.put_meant(attribute, &undoubled(value)),
                    _ => values.put(attribute, line, cell.place.clone()),
                }
            }
        }
        at.ok_or(Malformed::Time)
    }
}

impl ColumnMap {
    fn new(time: Option<usize>, places: impl Iterator<Item = Option<usize>>) -> Self {
        let mut attributes: Vec<SmallVec<_>> = Vec::new();
        for (attribute, column) in places.enumerate() {
            if let Some(column) = column.filter(|column| *column < MAX_COLUMNS) {
                attributes.resize(attributes.len().max(column + 1), SmallVec::new());
                attributes[column].push(attribute);
            }
        }
        Self { time, attributes }
    }
}

/// Detects the separator: the most frequent candidate outside quotes.
fn separator(line: &[u8]) -> u8 {
    const KNOWN: [u8; 3] = *b"\t;,";
    let mut counts = [0_usize; KNOWN.len()];
    let (mut place, mut begins) = (0, true);
    while let Some(byte) = line.get(place) {
        let known = KNOWN.iter().position(|one| one == byte);
        if let Some(known) = known {
            counts[known] += 1;
        }
        if begins && *byte == b'"' {
            place = closing(line, place).unwrap_or(line.len());
        }
        begins = known.is_some();
        place += 1;
    }
    let most = (0..KNOWN.len()).max_by_key(|known| counts[*known]);
    most.map_or(b',', |known| KNOWN[known])
}

/// Returns the end of the quoted value that begins at `start`.
fn closing(text: &[u8], start: usize) -> Option<usize> {
    let mut end = start + 1;
    loop {
        end += memchr(b'"', text.get(end..)?)?;
        if text.get(end + 1) != Some(&b'"') {
            return Some(end);
        }
        end += 2;
    }
}

/// Parses a column number, counted from 1.
fn number(field: &str) -> Option<usize> {
    field.parse::<usize>().ok()?.checked_sub(1)
}

fn cells(line: &[u8], separator: u8) -> impl Iterator<Item = Cell> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let start = next?;
        let (cell, end) = cell(line, start, separator);
        next = (end < line.len()).then_some(end + 1);
        Some(cell)
    })
}

/// Returns the cell that begins at `start`, and its end.
fn cell(line: &[u8], start: usize, separator: u8) -> (Cell, usize) {
    let until = |from: usize| {
        let rest = line.get(from..).unwrap_or_default();
        from + memchr(separator, rest).unwrap_or(rest.len())
    };
    if line.get(start) != Some(&b'"') {
        let end = until(start);
        return (Cell { place: start..end, doubled: false }, end);
    }
    let close = closing(line, start).unwrap_or(line.len());
    let place = start + 1..close;
    let doubled = memchr(b'"', &line[place.clone()]).is_some();
    (Cell { place, doubled }, until((close + 1).min(line.len())))
}

fn undoubled(value: &[u8]) -> Vec<u8> {
    let mut meant = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(quote) = memchr(b'"', rest) {
        meant.extend_from_slice(&rest[..=quote]);
        rest = rest.get(quote + 2..).unwrap_or_default();
    }
    meant.extend_from_slice(rest);
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_separator_is_the_most_frequent_candidate() {
        for (line, expected) in [
            ("time,ip", b','),
            ("time;ip", b';'),
            ("time\tip", b'\t'),
            ("time", b','),
            ("2026-01-01T00:00:00Z,1.2.3.4,\"Mozilla (X11; a; b; c)\"", b','),
            ("2026-01-01T00:00:00Z,1.2.3.4,Mozilla (X11; Linux)", b','),
            ("\"a,b,c,d\";x", b';'),
            ("5\" screen;x", b';'),
        ] {
            assert_eq!(separator(line.as_bytes()) as char, expected as char, "{line}");
        }
    }

    #[test]
    fn an_entry_ends_at_a_line_break_outside_quotes() {
        let csv = Csv::new(&Attributes::default(), &Map::default());
        for (text, expected) in [
            ("a,b\nc", End::At(3)),
            ("a,5\" b\nc\"", End::At(6)),
            ("a,\"b\nc\"\nd", End::At(7)),
            ("\"a\"\"\nb\"\"\"\nc", End::At(9)),
            ("\"a\" b\"\nc", End::At(6)),
            ("\"\"\nb", End::At(2)),
            ("a,\"b\nc", End::Quoted),
            ("a", End::Missing),
            ("a,\"b\nc\"", End::Missing),
        ] {
            assert_eq!(csv.end(text.as_bytes()), expected, "{text:?}");
        }
    }
}
