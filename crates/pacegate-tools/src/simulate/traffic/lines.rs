//! Reads one log in batches of lines, each sorted by time.

use std::{io::Read, ops::Range};

use memchr::{memchr, memchr_iter};

use super::{
    Malformed, TrafficError,
    format::{End, Format, LineParser, Map},
    open::{Place, Progress},
    row::{Attributes, Rows},
};

/// Reads one log. Lines that are out of order by less than the window are sorted; lines that a later line may
/// still precede are kept for the next batch.
pub(super) struct Lines {
    name: String,
    input: Box<dyn Read>,
    reader: LineParser,
    rows: Rows,
    /// Index of the next row.
    next: usize,
    /// Number of rows that no line of the next batch can precede.
    ready: usize,
    /// Number of lines at the start of the text that are already counted.
    known: usize,
    /// Number of bytes of complete lines at the start of the text.
    kept: usize,
    /// Number of filled bytes of the text.
    filled: usize,
    ended: bool,
    /// True while skipping the rest of a line that was too long.
    skipping: bool,
    /// Current batch size in bytes. It grows to `usual`, and to `most` only if the window needs it.
    size: usize,
    usual: usize,
    most: usize,
    window: u64,
    pub(super) counts: LineCounts,
}

/// Line counts of a log.
#[derive(Debug, Default)]
pub(super) struct LineCounts {
    pub(super) lines: u64,
    pub(super) malformed: u64,
    /// Position and error of the first malformed lines.
    pub(super) examples: Vec<String>,
}

/// Maximum length of a line; longer ones are malformed.
const MAX_LINE: usize = 1 << 20;
/// Size of the first batch. It is small because there may be many small files.
const FIRST_BATCH: usize = 64 << 10;
/// Total batch size of all files in normal operation; larger batches need fewer reads.
const BATCHES: usize = 64 << 20;
const USUAL_BATCH: usize = 4 << 20;
/// Maximum total batch size of all files, if the window needs it.
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
    ) -> Result<Self, TrafficError> {
        let unreadable = |error| TrafficError::Read(place.name(), error);
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
            window: u64::try_from(spec.window.as_micros()).unwrap_or(u64::MAX),
            counts: LineCounts::default(),
        };
        lines.fill().map_err(unreadable)?;
        lines.drop_mark();
        let format = match spec.format {
            Format::Auto => Format::of(&lines.rows.text[..lines.filled], &spec.map),
            format => Some(format),
        };
        if format.is_none() && lines.filled > 0 {
            return Err(TrafficError::Unknown(place.name()));
        }
        lines.reader = format.unwrap_or_default().reader(attributes, &spec.map);
        lines.parse();
        lines.settle()?;
        Ok(lines)
    }

    /// Removes the UTF-8 byte order mark.
    fn drop_mark(&mut self) {
        if self.rows.text[..self.filled].starts_with(BYTE_ORDER_MARK) {
            self.rows.text.copy_within(BYTE_ORDER_MARK.len()..self.filled, 0);
            self.filled -= BYTE_ORDER_MARK.len();
        }
    }

    /// Returns the timestamp of the next row.
    pub(super) fn at(&self) -> Option<u64> {
        (self.next < self.ready).then(|| self.rows.as_slice()[self.next].at)
    }

    /// Returns the value of an attribute in the next row.
    #[inline]
    pub(super) fn value(&self, attribute: usize) -> Option<&[u8]> {
        self.rows.value(self.next, attribute)
    }

    /// Advances to the row after it.
    pub(super) fn advance(&mut self) -> Result<(), TrafficError> {
        self.next += 1;
        self.settle()
    }

    /// Reads batches until a row is ready or the log has ended.
    fn settle(&mut self) -> Result<(), TrafficError> {
        while self.next >= self.ready && !(self.ended && self.kept == 0) {
            self.keep();
            self.grow();
            self.fill().map_err(|error| TrafficError::Read(self.name.clone(), error))?;
            self.parse();
        }
        Ok(())
    }

    /// Moves the lines that were not returned yet, and the incomplete rest, to the front of the text.
    fn keep(&mut self) {
        let held = self.rows.as_slice()[self.ready..].iter();
        // In file order, so that lines with equal timestamps stay in order.
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

    /// Increases the batch size while it is below the usual one, or if much of this batch had to be kept.
    fn grow(&mut self) {
        let kept_much = self.filled > self.size / 2;
        let most = if kept_much { self.most } else { self.usual };
        self.size = (2 * self.size).min(most).max(self.size);
    }

    /// Reads until the batch is full.
    fn fill(&mut self) -> std::io::Result<()> {
        // Leave room to double an incomplete line, so that it is not scanned too often.
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

    /// Removes the rest of a line that was too long from the last `length` bytes read. Returns the remaining
    /// length.
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

    /// Parses the complete lines into rows.
    fn parse(&mut self) {
        self.rows.clear();
        self.next = 0;
        let (mut start, mut latest, mut place) = (0, 0, 0);
        while let Some((line, broken)) = self.line(start) {
            if place >= self.known {
                self.counts.lines += 1 + self.breaks(&line);
            }
            place += 1;
            // After the line break, or at the end of the text if the last line has none.
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

    /// Determines which rows are ready.
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

    /// Finds the entry that begins at `start` and checks its length. An entry without a line break is
    /// complete at the end of the log. If the end of an entry is too far away, only its first line is
    /// malformed.
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

    /// Counts the line breaks within an entry.
    fn breaks(&self, line: &Range<usize>) -> u64 {
        match self.reader.spans_lines() {
            true => memchr_iter(b'\n', &self.rows.text[line.clone()]).count() as u64,
            false => 0,
        }
    }

    /// Parses a line and returns its timestamp, or 0 if it is malformed.
    fn parse_line(&mut self, Range { start, end }: Range<usize>) -> u64 {
        let text = &self.rows.text[start..end];
        let trimmed = text.strip_suffix(b"\r").unwrap_or(text);
        if trimmed.is_empty() || self.reader.is_heading(trimmed) {
            return 0;
        }
        // Include the line break, because the line may have to be kept.
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
            let Self { name, counts: LineCounts { lines, .. }, .. } = self;
            let place = format!("{name}:{lines}: {what}");
            self.counts.examples.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;

    /// Reads a log as one of `files` files. Returns the final buffer size and the number of rows.
    fn read(path: &Path, files: usize) -> (usize, u64) {
        let places = vec![Place::from(path); files];
        let (format, map) = (Format::Auto, Map::default());
        let spec = super::super::Spec { places, format, map, window: Duration::ZERO };
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
    fn buffers_are_small_for_small_files_and_bounded_for_large_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = "1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
        fs::write(file.path(), line).unwrap();
        let (room, rows) = read(file.path(), 1);
        assert!((room <= 2 * FIRST_BATCH, rows) == (true, 1), "{room} {rows}");
        fs::write(file.path(), line.repeat(100_000)).unwrap();
        // All lines have the same timestamp, so no row is ready before the batch has its maximum size.
        for files in [1, 300] {
            let (room, rows) = read(file.path(), files);
            let most = (MAX_BATCHES / files).min(MAX_BATCH);
            assert!(room <= 2 * (most + MAX_LINE), "{files}: {room}");
            assert_eq!(rows, 100_000, "{files}");
        }
    }
}
