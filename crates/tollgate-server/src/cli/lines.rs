use std::io::{self, BufRead, BufReader, Read};

/// Lines of bounded length.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
}

/// One line without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// More than [`Lines::MAX_LENGTH`] bytes; they have been skipped.
    TooLong,
}

impl<R: Read> Lines<R> {
    pub(super) const MAX_LENGTH: usize = 64 * 1024;

    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::new(input), line: Vec::new() }
    }

    /// The next line, or `None` at the end of the input.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let room = Self::MAX_LENGTH as u64 + 1;
        if self.input.by_ref().take(room).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if let Some(line) = self.line.strip_suffix(b"\n") {
            return Ok(Some(Line::Whole(line.strip_suffix(b"\r").unwrap_or(line))));
        }
        if self.line.len() > Self::MAX_LENGTH {
            self.input.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Whole(&self.line)))
    }

    /// Whether the next line is here already. If not, whoever sends it may be waiting for an answer first.
    pub(super) fn has_next(&self) -> bool {
        self.input.buffer().contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[Line<'_>]) {
        let mut lines = Lines::new(input);
        for line in expected {
            assert_eq!(lines.next().unwrap(), Some(*line));
        }
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn lines_end_at_newlines_and_at_the_end() {
        use Line::Whole;
        check(b"", &[]);
        check(b"\n", &[Whole(b"")]);
        check(b"a\n\r\nb\r\nc", &[Whole(b"a"), Whole(b""), Whole(b"b"), Whole(b"c")]);
    }

    #[test]
    fn the_line_after_one_that_is_too_long_is_read() {
        let longest = vec![b'x'; Lines::<&[u8]>::MAX_LENGTH];
        check(&[&longest, &b"\na"[..]].concat(), &[Line::Whole(&longest), Line::Whole(b"a")]);
        check(&[&longest, &b"x\na"[..]].concat(), &[Line::TooLong, Line::Whole(b"a")]);
        check(&[&longest[..], &longest, &longest].concat(), &[Line::TooLong]);
    }
}
