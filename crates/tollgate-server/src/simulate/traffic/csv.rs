//! Comma-separated values, with the names of the columns in the first line.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::{
    Malformed,
    format::{Map, TIME},
    instant::Instants,
    row::{Attributes, Values},
};

/// Reads values by columns.
#[derive(Debug)]
pub(super) struct Csv {
    instants: Instants,
    names: Vec<Vec<String>>,
    time: Vec<String>,
    /// Where the columns are, once that is known.
    columns: Option<Columns>,
    /// What the first line has between its values.
    separator: Option<u8>,
}

#[derive(Debug)]
struct Columns {
    time: Option<usize>,
    /// For each column, the attribute that it is.
    attributes: Vec<Option<usize>>,
}

/// A value without its quotes, and whether quotes within it are doubled.
struct Cell {
    place: Range<usize>,
    doubled: bool,
}

/// More columns than this are no table.
const MAX_COLUMNS: usize = 1_024;

impl Csv {
    pub(super) fn new(attributes: &Attributes, map: &Map) -> Self {
        let names: Vec<_> = attributes.0.iter().map(|name| map.candidates(name)).collect();
        let time = map.candidates(TIME);
        // Numbers in place of names say that there is no line with names.
        let numbered =
            map.fields().next().is_some() && map.fields().all(|field| number(field).is_some());
        let columns = numbered.then(|| {
            let place = |names: &[String]| names.first().and_then(|name| number(name));
            Columns::new(place(&time), names.iter().map(|names| place(names)))
        });
        Self { instants: Instants::default(), names, time, columns, separator: None }
    }

    /// Whether a line looks like the names of columns, of which one is an instant.
    pub(super) fn fits(line: &[u8]) -> bool {
        let mut csv = Self::new(&Attributes::default(), &Map::default());
        csv.is_heading(line) && csv.columns.is_some_and(|columns| columns.time.is_some())
    }

    /// Takes the line with the names, if that is what comes first.
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
        self.columns = Some(Columns::new(place(&self.time), attributes));
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
            let attribute = columns.attributes.get(column).copied().flatten();
            match attribute {
                Some(attribute) if !matches!(&line[cell.place.clone()], b"" | b"-") => {
                    if cell.doubled {
                        values.put_meant(attribute, &undoubled(&line[cell.place]));
                    } else {
                        values.put(attribute, line, cell.place);
                    }
                }
                _ => {}
            }
        }
        at.ok_or(Malformed::Time)
    }
}

impl Columns {
    fn new(time: Option<usize>, places: impl Iterator<Item = Option<usize>>) -> Self {
        let mut attributes = Vec::new();
        for (attribute, column) in places.enumerate() {
            if let Some(column) = column.filter(|column| *column < MAX_COLUMNS) {
                attributes.resize(attributes.len().max(column + 1), None);
                attributes[column] = Some(attribute);
            }
        }
        Self { time, attributes }
    }
}

fn separator(line: &[u8]) -> u8 {
    [b'\t', b';'].into_iter().find(|one| line.contains(one)).unwrap_or(b',')
}

/// A column by its number, counted from 1.
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

/// The cell that begins here, and where it ends.
fn cell(line: &[u8], start: usize, separator: u8) -> (Cell, usize) {
    let until = |from: usize| {
        let rest = line.get(from..).unwrap_or_default();
        from + memchr(separator, rest).unwrap_or(rest.len())
    };
    if line.get(start) != Some(&b'"') {
        let end = until(start);
        return (Cell { place: start..end, doubled: false }, end);
    }
    let (mut end, mut doubled) = (start + 1, false);
    while let Some(quote) = memchr2(b'"', b'"', line.get(end..).unwrap_or_default()) {
        if line.get(end + quote + 1) != Some(&b'"') {
            let close = end + quote;
            return (Cell { place: start + 1..close, doubled }, until(close + 1));
        }
        doubled = true;
        end += quote + 2;
    }
    (Cell { place: start + 1..line.len(), doubled }, line.len())
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
