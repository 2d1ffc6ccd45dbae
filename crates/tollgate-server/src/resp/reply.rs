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
    pub(crate) fn coded_error(&mut self, text: &'static str) {
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

    fn line(&mut self, mark: u8, text: &'static str) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn number(&mut self, mark: u8, value: i64) {
        if let digit @ 0..=9 = value {
            self.bytes.extend_from_slice(&[mark, b'0' + digit as u8, b'\r', b'\n']);
            return;
        }
        let mut digits = [0; 24];
        let mut at = digits.len() - 2;
        digits[at..].copy_from_slice(b"\r\n");
        let mut rest = value.unsigned_abs();
        while rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        if value < 0 {
            at -= 1;
            digits[at] = b'-';
        }
        at -= 1;
        digits[at] = mark;
        self.bytes.extend_from_slice(&digits[at..]);
    }
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
        for value in [0, 9, 10, -1, 1_234_567_890, i64::MAX, i64::MIN] {
            assert_eq!(written(false, |to| to.integer(value)), format!(":{value}\r\n"));
        }
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
