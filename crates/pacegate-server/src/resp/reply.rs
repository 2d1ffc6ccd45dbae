//! Replies in the wire format.

use std::io::Write as _;

use super::error::CommandError;

/// Replies in the order of their commands, in RESP2 or RESP3.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) bytes: Vec<u8>,
    /// True if the client selected RESP3.
    pub(crate) is_resp3: bool,
}

impl Replies {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), is_resp3: false }
    }

    pub(crate) fn simple(&mut self, text: &'static str) {
        self.line(b'+', text);
    }

    /// Writes an error. Control characters, which could end the line, become blanks.
    pub(super) fn error(&mut self, error: &CommandError) {
        let start = self.bytes.len();
        // Writing to a vector cannot fail.
        let _ = write!(self.bytes, "-{error}");
        self.bytes[start..].iter_mut().filter(|byte| **byte < b' ').for_each(|byte| *byte = b' ');
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    pub(crate) fn bulk(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.number(b'$', text.len() as i64);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        match (self.is_resp3, value) {
            (true, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (true, false) => self.bytes.extend_from_slice(b"#f\r\n"),
            (false, _) => self.integer(i64::from(value)),
        }
    }

    /// Starts an array of this length.
    #[inline]
    pub(crate) fn array(&mut self, elements: usize) {
        self.number(b'*', elements as i64);
    }

    /// Starts a map of this length. RESP2 has no maps, so it becomes an array of keys and values.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.is_resp3 {
            true => self.number(b'%', pairs as i64),
            false => self.array(pairs * 2),
        }
    }

    fn line(&mut self, mark: u8, text: &str) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn number(&mut self, mark: u8, value: i64) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes an array of five integers.
    #[inline]
    pub(crate) fn integers(&mut self, values: [i64; 5]) {
        self.bytes.reserve(5 * MAX_NUMBER_BYTES + 4);
        self.array(values.len());
        values.into_iter().for_each(|value| self.integer(value));
    }
}

/// Maximum bytes of a number with its mark and line end.
const MAX_NUMBER_BYTES: usize = 23;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(is_resp3: bool, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies { is_resp3, ..Replies::new() };
        write(&mut replies);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn numbers_are_written_in_full() {
        let more = [99, 100, 101, 999, 1_000, 12_345, -9, -10, -100, 1_234_567_890];
        for value in [0, 9, 10, -1, i64::MAX, i64::MIN].into_iter().chain(more) {
            assert_eq!(written(false, |to| to.integer(value)), format!(":{value}\r\n"));
        }
        let values = [i64::MIN, i64::MIN, i64::MIN, i64::MIN, i64::MIN];
        let all = values.map(|value| format!(":{value}\r\n")).concat();
        assert_eq!(written(false, |to| to.integers(values)), format!("*5\r\n{all}"));
        assert_eq!(
            written(true, |to| to.integers([0, 16, 15, -1, 2])),
            "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n"
        );
    }

    #[test]
    fn each_version_has_its_own_forms() {
        let all = |to: &mut Replies| {
            to.map(1);
            to.bulk("a\r\nb");
            to.null();
            to.boolean(true);
        };
        assert_eq!(written(false, all), "*2\r\n$4\r\na\r\nb\r\n$-1\r\n:1\r\n");
        assert_eq!(written(true, all), "%1\r\n$4\r\na\r\nb\r\n_\r\n#t\r\n");
    }

    #[test]
    fn errors_stay_on_one_line() {
        let error = CommandError::DuplicateAttribute("a\r\nb\0".to_owned());
        assert_eq!(written(true, |to| to.error(&error)), "-ERR duplicate attribute 'a  b '\r\n");
    }
}
