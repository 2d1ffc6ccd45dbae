//! One log: its lines in batches, each in the order of time.

use std::{io::Read, ops::Range};

use memchr::{memchr, memchr_iter};

use super::{
    Malformed, Trouble,
    format::{End, Format, Map, Reader},
    open::{Place, Progress},
    row::{Attributes, Rows},
};

/// Reads one log. Lines that are out of order by less than the window are put in order; the text of those that might
/// still be overtaken is kept for the next batch.
pub(super) struct Lines {
    name: String,
    input: Box<dyn Read>,
    reader: Reader,
    rows: Rows,
    /// The row that comes next.
    next: usize,
    /// Rows that nothing in the next batch can overtake.
    ready: usize,
    /// How many lines at the start of the text were counted before.
    known: usize,
    /// How many bytes at the start of the text are such lines.
    kept: usize,
    /// How much of the text is filled.
    filled: usize,
    ended: bool,
    /// The rest of a line that was too long is still to come.
    skipping: bool,
    /// Bytes of a batch, of which it gets `usual` soon, and `most` only if the window takes it.
    size: usize,
    usual: usize,
    most: usize,
    window: u64,
    pub(super) counts: Counts,
}

/// What was seen of a log.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) lines: u64,
    pub(super) malformed: u64,
    /// Where the first of those are, and what is wrong with them.
    pub(super) examples: Vec<String>,
}

/// Longer lines are malformed.
const MAX_LINE: usize = 1 << 20;
/// The first batch is small: there may be many files, and little in each.
const FIRST_BATCH: usize = 64 << 10;
/// Batches of all files together grow to this, as more is read at once with fewer calls.
const BATCHES: usize = 64 << 20;
const USUAL_BATCH: usize = 4 << 20;
/// Batches of all files together grow up to this so that the window fits in.
const MAX_BATCHES: usize = 256 << 20;
const MAX_BATCH: usize = 64 << 20;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
const MAX_EXAMPLES: usize = 5;

impl Lines {
    pub(super) fn open(
        place: &Place,
        spec: &super::Spec,
        attributes: &Attributes,
        progress: &Progress,
    ) -> Result<Self, Trouble> {
        let unreadable = |error| Trouble::Read(place.name(), error);
        let input = place.open(progress).map_err(unreadable)?;
        let files = spec.places.len().max(1);
        let usual = (BATCHES / files).clamp(FIRST_BATCH, USUAL_BATCH);
        let mut lines = Self {
            name: place.name(),
            input,
            reader: Format::Combined.reader(attributes, &Map::default()),
            rows: Rows::new(attributes),
            next: 0,
            ready: 0,
            known: 0,
            kept: 0,
            filled: 0,
            ended: false,
            skipping: false,
            size: FIRST_BATCH,
            usual,
            most: (MAX_BATCHES / files).clamp(usual, MAX_BATCH),
            window: spec.window,
            counts: Counts::default(),
        };
        lines.fill().map_err(unreadable)?;
        lines.drop_mark();
        let format = match spec.format {
            Format::Auto => Format::of(&lines.rows.text[..lines.filled], &spec.map),
            format => Some(format),
        };
        if format.is_none() && lines.filled > 0 {
            return Err(Trouble::Unknown(place.name()));
        }
        lines.reader = format.unwrap_or_default().reader(attributes, &spec.map);
        lines.parse();
        lines.settle()?;
        Ok(lines)
    }

    /// Drops what says that a text is UTF-8.
    fn drop_mark(&mut self) {
        if self.rows.text[..self.filled].starts_with(BYTE_ORDER_MARK) {
            self.rows.text.copy_within(BYTE_ORDER_MARK.len()..self.filled, 0);
            self.filled -= BYTE_ORDER_MARK.len();
        }
    }

    /// The instant of the row that comes next.
    pub(super) fn at(&self) -> Option<u64> {
        (self.next < self.ready).then(|| self.rows.as_slice()[self.next].at)
    }

    /// The value of an attribute in that row.
    #[inline]
    pub(super) fn value(&self, attribute: usize) -> Option<&[u8]> {
        self.rows.value(self.next, attribute)
    }

    /// Goes on to the row after it.
    pub(super) fn advance(&mut self) -> Result<(), Trouble> {
        self.next += 1;
        self.settle()
    }

    /// Reads on until there is a row to give out, or none any more.
    fn settle(&mut self) -> Result<(), Trouble> {
        while self.next >= self.ready && !(self.ended && self.kept == 0) {
            self.keep();
            self.grow();
            self.fill().map_err(|error| Trouble::Read(self.name.clone(), error))?;
            self.parse();
        }
        Ok(())
    }

    /// Moves the lines that were not given out, and the rest of the text, to the front.
    fn keep(&mut self) {
        let held = self.rows.as_slice()[self.ready..].iter();
        // By their place, so that lines of one instant stay in order.
        let mut held: Vec<_> = held.map(|row| row.line.range()).collect();
        held.sort_unstable_by_key(|line| line.start);
        let tail = self.kept..self.filled;
        let mut end = 0;
        self.known = held.len();
        for line in held.into_iter().chain([tail]) {
            let length = line.len();
            self.rows.text.copy_within(line, end);
            end += length;
        }
        self.filled = end;
    }

    /// Lets the next batch be larger: while batches are small, and when much of this one was kept.
    fn grow(&mut self) {
        let kept_much = self.filled > self.size / 2;
        let most = if kept_much { self.most } else { self.usual };
        self.size = (2 * self.size).min(most).max(self.size);
    }

    /// Reads until the batch is full.
    fn fill(&mut self) -> std::io::Result<()> {
        // With room for as much again of a line that is not whole, so that it is not gone through too often.
        let size = self.size.max(self.filled + self.filled.clamp(FIRST_BATCH, MAX_LINE));
        self.rows.text.resize(size, 0);
        while self.filled < size && !self.ended {
            let length = match self.input.read(&mut self.rows.text[self.filled..]) {
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.ended = length == 0;
            self.filled += self.without_skipped(length);
        }
        Ok(())
    }

    /// Drops what belongs to a line that was too long from the bytes that were read last. The rest is so long.
    fn without_skipped(&mut self, length: usize) -> usize {
        if !self.skipping {
            return length;
        }
        let end = self.filled + length;
        let Some(line_break) = memchr(b'\n', &self.rows.text[self.filled..end]) else { return 0 };
        self.skipping = false;
        self.rows.text.copy_within(self.filled + line_break + 1..end, self.filled);
        length - line_break - 1
    }

    /// Makes rows of the lines that are whole.
    fn parse(&mut self) {
        self.rows.clear();
        self.next = 0;
        let (mut start, mut latest, mut place) = (0, 0, 0);
        while let Some((line, broken)) = self.line(start) {
            if place >= self.known {
                self.counts.lines += 1 + self.breaks(&line);
            }
            place += 1;
            // Behind the line break, or behind the text if it has none at its end.
            start = (line.end + 1).min(self.filled);
            match broken {
                Some(malformed) => self.malformed(malformed),
                None => latest = latest.max(self.parse_line(line)),
            }
        }
        self.rows.sort();
        self.kept = start;
        if self.filled - start > MAX_LINE {
            self.counts.lines += 1;
            self.malformed(Malformed::TooLong);
            self.skipping = true;
            self.filled = start;
        }
        self.hold(latest);
    }

    /// Decides which rows can be given out.
    fn hold(&mut self, latest: u64) {
        let rows = self.rows.as_slice();
        let until = latest.saturating_sub(self.window);
        let settled = rows.partition_point(|row| row.at < until);
        self.ready = match self.size >= self.most {
            _ if self.ended => rows.len(),
            true => settled.max(rows.len().div_ceil(2)),
            false => settled,
        };
        if self.ended {
            (self.kept, self.filled) = (0, 0);
        }
    }

    /// Where the entry is that begins here, and what is wrong with it as such. One without an end is whole if nothing
    /// comes after it. Of one whose end is not within reach, the first line is lost, and no more.
    fn line(&self, start: usize) -> Option<(Range<usize>, Option<Malformed>)> {
        let text = &self.rows.text[start..self.filled];
        let reach = &text[..text.len().min(MAX_LINE + 1)];
        let is_last = self.ended && reach.len() == text.len();
        let wrong = match self.reader.end(reach) {
            End::At(end) => return Some((start..start + end, None)),
            End::Missing if is_last => {
                return (!text.is_empty()).then_some((start..self.filled, None));
            }
            _ if !self.ended && reach.len() == text.len() => return None,
            End::Missing => Malformed::TooLong,
            End::Quoted => Malformed::Unclosed,
        };
        let end = memchr(b'\n', text).or(is_last.then_some(text.len()))?;
        Some((start..start + end, Some(wrong)))
    }

    /// Line breaks within an entry.
    fn breaks(&self, line: &Range<usize>) -> u64 {
        match self.reader.spans_lines() {
            true => memchr_iter(b'\n', &self.rows.text[line.clone()]).count() as u64,
            false => 0,
        }
    }

    /// The instant of a line, or 0 if it has none.
    fn parse_line(&mut self, Range { start, end }: Range<usize>) -> u64 {
        let text = &self.rows.text[start..end];
        let trimmed = text.strip_suffix(b"\r").unwrap_or(text);
        if trimmed.is_empty() || self.reader.is_heading(trimmed) {
            return 0;
        }
        // With its line break, since it may have to be kept.
        let length = trimmed.len();
        let reader = &mut self.reader;
        let whole = start..(end + 1).min(self.filled);
        let read = self.rows.read(whole, |line, values| reader.read(&line[..length], values));
        read.unwrap_or_else(|malformed| {
            self.malformed(malformed);
            0
        })
    }

    fn malformed(&mut self, what: Malformed) {
        self.counts.malformed += 1;
        if self.counts.examples.len() < MAX_EXAMPLES {
            let Self { name, counts: Counts { lines, .. }, .. } = self;
            let place = format!("{name}:{lines}: {what}");
            self.counts.examples.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Reads a log as one of so many files: how much room it took in the end, and how many rows it has.
    fn read(path: &Path, files: usize) -> (usize, u64) {
        let places = vec![Place::from(path); files];
        let (format, map) = (Format::Auto, Map::default());
        let spec = super::super::Spec { places, format, map, window: 0 };
        let place = &spec.places[0];
        let lines = Lines::open(place, &spec, &Attributes::default(), &Progress::default());
        let (mut lines, mut rows) = (lines.ok().unwrap(), 0);
        while lines.at().is_some() {
            rows += 1;
            lines.advance().unwrap();
        }
        (lines.rows.text.capacity(), rows)
    }

    #[test]
    fn a_small_file_takes_little_room_and_a_large_one_its_share() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = "1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
        fs::write(file.path(), line).unwrap();
        let (room, rows) = read(file.path(), 1);
        assert!((room <= 2 * FIRST_BATCH, rows) == (true, 1), "{room} {rows}");
        fs::write(file.path(), line.repeat(100_000)).unwrap();
        // All lines are of one instant, so nothing can be given out before the batch is as large as it may be.
        for files in [1, 300] {
            let (room, rows) = read(file.path(), files);
            let most = (MAX_BATCHES / files).min(MAX_BATCH);
            assert!(room <= 2 * (most + MAX_LINE), "{files}: {room}");
            assert_eq!(rows, 100_000, "{files}");
        }
    }
}
