//! Commands in the wire format: arrays of bulk strings, or lines of words.

use smallvec::SmallVec;

/// The arguments of a command; the first is its name.
pub(crate) type Args<'a> = SmallVec<[&'a [u8]; 8]>;

/// Bounds of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameBounds {
    /// Number of arguments.
    pub(crate) args: usize,
    /// Total bytes.
    pub(crate) bytes: usize,
}

/// Why bytes are not a command. The connection must end, because the start of the next command is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("expected an array of bulk strings, or a line of words")]
    NotACommand,
    #[error("invalid length: expected up to 10 digits")]
    BadLength,
    #[error("expected CR LF")]
    BadEnd,
    #[error("too many words")]
    TooManyWords,
    #[error("command too long")]
    TooLong,
}

/// Maximum bytes of a length with its line end.
const MAX_LENGTH_BYTES: usize = 13;

/// Parses the first command of `input` into `args`, and returns its length in bytes. Returns `None` if the command is
/// incomplete; `args` is then unspecified.
///
/// Empty lines and empty arrays are commands without arguments.
pub(crate) fn read<'a>(
    input: &'a [u8],
    bounds: FrameBounds,
    args: &mut Args<'a>,
) -> Result<Option<usize>, FrameError> {
    args.clear();
    let done = match input.first() {
        None => None,
        Some(b'*') => read_array(input, bounds, args)?,
        Some(_) => read_line(input, bounds, args)?,
    };
    match done {
        Some(length) if length > bounds.bytes => Err(FrameError::TooLong),
        None if input.len() >= bounds.bytes => Err(FrameError::TooLong),
        done => Ok(done),
    }
}

fn read_array<'a>(
    input: &'a [u8],
    bounds: FrameBounds,
    args: &mut Args<'a>,
) -> Result<Option<usize>, FrameError> {
    let Some((count, mut at)) = read_length(input, 1)? else { return Ok(None) };
    if count > bounds.args {
        return Err(FrameError::TooManyWords);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(FrameError::NotACommand),
        }
        let Some((length, start)) = read_length(input, at + 1)? else { return Ok(None) };
        if length > bounds.bytes {
            return Err(FrameError::TooLong);
        }
        let end = start + length;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => return Err(FrameError::BadEnd),
        }
        args.push(&input[start..end]);
        at = end + 2;
    }
    Ok(Some(at))
}

/// Parses the length at `from`. Returns it with the start of the next line.
#[inline]
pub(super) fn read_length(input: &[u8], from: usize) -> Result<Option<(usize, usize)>, FrameError> {
    let mut value = 0;
    for (place, &byte) in input[from..].iter().take(MAX_LENGTH_BYTES).enumerate() {
        match byte {
            b'0'..=b'9' if place < 10 => value = value * 10 + usize::from(byte - b'0'),
            b'\r' if place > 0 => {
                let end = from + place + 1;
                return match input.get(end) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((value, end + 1))),
                    Some(_) => Err(FrameError::BadEnd),
                };
            }
            _ => return Err(FrameError::BadLength),
        }
    }
    Ok(None)
}

/// Parses a line of words separated by blanks, as typed in a terminal.
fn read_line<'a>(
    input: &'a [u8],
    bounds: FrameBounds,
    args: &mut Args<'a>,
) -> Result<Option<usize>, FrameError> {
    let Some(end) = input.iter().take(bounds.bytes).position(|&byte| byte == b'\n') else {
        // Reject binary data at once instead of waiting for the end of the line.
        let text = input.iter().all(|byte| byte.is_ascii_graphic() || b" \t\r".contains(byte));
        return if text { Ok(None) } else { Err(FrameError::NotACommand) };
    };
    let line = &input[..end];
    let is_text = |byte: &u8| *byte >= b' ' && *byte != 0x7f || b"\t\r".contains(byte);
    if !line.iter().all(is_text) {
        return Err(FrameError::NotACommand);
    }
    args.extend(line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()));
    if args.len() > bounds.args {
        return Err(FrameError::TooManyWords);
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: FrameBounds = FrameBounds { args: 4, bytes: 64 };

    type Found<'a> = Option<(Vec<&'a [u8]>, usize)>;

    fn args(input: &[u8]) -> Result<Found<'_>, FrameError> {
        let mut args = Args::new();
        Ok(read(input, BOUNDS, &mut args)?.map(|length| (args.to_vec(), length)))
    }

    #[test]
    fn reads_arrays_and_lines() {
        for (input, expected, length) in [
            (&b"*1\r\n$4\r\nPING\r\n"[..], &[&b"PING"[..]][..], 14),
            (b"*2\r\n$1\r\na\r\n$0\r\n\r\n*1", &[b"a", b""], 17),
            (b"*1\r\n$4\r\na\r\nb\r\n", &[b"a\r\nb"], 14),
            (b"*0\r\nrest", &[], 4),
            (b"ping  hello\t\r\nmore", &[b"ping", b"hello"], 14),
            (b"\r\n", &[], 2),
            (b"a\n", &[b"a"], 2),
        ] {
            assert_eq!(args(input), Ok(Some((expected.to_vec(), length))), "{input:?}");
        }
    }

    #[test]
    fn waits_for_the_rest() {
        let whole = b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n";
        for length in 0..whole.len() {
            assert_eq!(args(&whole[..length]), Ok(None), "{length}");
        }
    }

    #[test]
    fn rejects_invalid_commands() {
        for (input, error) in [
            (&b"*1\r\n:1\r\n"[..], FrameError::NotACommand),
            (b"*x\r\n", FrameError::BadLength),
            (b"*-1\r\n", FrameError::BadLength),
            (b"*\r\n", FrameError::BadLength),
            (b"*00000000001\r\n", FrameError::BadLength),
            (b"*1\rx", FrameError::BadEnd),
            (b"*1\r\n$1\r\nabc", FrameError::BadEnd),
            (b"*5\r\n", FrameError::TooManyWords),
            (b"a b c d e\n", FrameError::TooManyWords),
            (b"*1\r\n$65\r\n", FrameError::TooLong),
            (b"\x16\x03\x01", FrameError::NotACommand),
            (b"a\0b\n", FrameError::NotACommand),
            (&[b'x'; 64], FrameError::TooLong),
        ] {
            assert_eq!(args(input), Err(error), "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn arrays_round_trip(
            list in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..5),
            rest in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = format!("*{}\r\n", list.len()).into_bytes();
            for word in &list {
                bytes.extend(format!("${}\r\n", word.len()).into_bytes());
                bytes.extend([word, &b"\r\n"[..]].concat());
            }
            let length = bytes.len();
            bytes.extend(rest);
            let bounds = FrameBounds { args: 5, bytes: 1000 };
            let mut args = Args::new();
            let read = read(&bytes, bounds, &mut args).unwrap().unwrap();
            prop_assert_eq!(args.to_vec(), list);
            prop_assert_eq!(read, length);
        }
    }
}
