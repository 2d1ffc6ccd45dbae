//! Answers as they go over the wire.

/// Writes answers one after the other, in the protocol's second or third version.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) bytes: Vec<u8>,
    /// Whether the client has asked for the third version.
    pub(crate) third: bool,
}

impl Replies {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), third: false }
    }

    pub(crate) fn simple(&mut self, text: &'static str) {
        self.line(b'+', text);
    }

    /// An error. Whatever would end the line is left out.
    pub(crate) fn error(&mut self, text: impl AsRef<str>) {
        self.bytes.extend_from_slice(b"-ERR ");
        let text = text.as_ref().bytes().map(|byte| if byte < b' ' { b' ' } else { byte });
        self.bytes.extend(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An error with a word of its own in place of `ERR`.
    pub(crate) fn coded_error(&mut self, text: &str) {
        self.line(b'-', text);
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
        self.bytes.extend_from_slice(if self.third { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        match (self.third, value) {
            (true, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (true, false) => self.bytes.extend_from_slice(b"#f\r\n"),
            (false, _) => self.integer(i64::from(value)),
        }
    }

    /// So many elements follow.
    #[inline]
    pub(crate) fn array(&mut self, elements: usize) {
        self.number(b'*', elements as i64);
    }

    /// So many pairs follow. The second version has no maps, and gets a list of twice as many.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.third {
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
        let mut text = [0; LONGEST];
        let at = write_before(&mut text, LONGEST, mark, value);
        self.bytes.extend_from_slice(&text[at..]);
    }

    /// A list of five integers, written at once.
    #[inline]
    pub(crate) fn five(&mut self, values: [i64; 5]) {
        let mut text = [0; 5 * LONGEST + 4];
        let mut at = text.len();
        for value in values.into_iter().rev() {
            at = write_before(&mut text, at, b':', value);
        }
        at = write_before(&mut text, at, b'*', 5);
        self.bytes.extend_from_slice(&text[at..]);
    }
}

/// The most bytes that a number takes up, with its mark and its end.
const LONGEST: usize = 23;

/// The numbers below 100, of two digits each.
static PAIRS: [u8; 200] = pairs();

/// Writes a line with a number in front of what is in `text` from `end` on. Returns where it begins.
#[inline]
fn write_before(text: &mut [u8], end: usize, mark: u8, value: i64) -> usize {
    let mut at = end - 2;
    text[at..end].copy_from_slice(b"\r\n");
    let mut rest = value.unsigned_abs();
    while rest > 9 {
        at -= 2;
        let pair = 2 * (rest % 100) as usize;
        text[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        rest /= 100;
    }
    if rest > 0 || at == end - 2 {
        at -= 1;
        text[at] = b'0' + rest as u8;
    }
    if value < 0 {
        at -= 1;
        text[at] = b'-';
    }
    at -= 1;
    text[at] = mark;
    at
}

const fn pairs() -> [u8; 200] {
    let mut text = [b'0'; 200];
    let mut number = 0;
    while number < 100 {
        text[2 * number] = b'0' + (number / 10) as u8;
        text[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(third: bool, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies { third, ..Replies::new() };
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
        assert_eq!(written(false, |to| to.five(values)), format!("*5\r\n{all}"));
        assert_eq!(
            written(true, |to| to.five([0, 16, 15, -1, 2])),
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
    fn no_error_ends_its_line_early() {
        assert_eq!(written(true, |to| to.error("a\r\nb\0")), "-ERR a  b \r\n");
    }
}
