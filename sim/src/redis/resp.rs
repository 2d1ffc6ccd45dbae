//! The Redis protocol, as much of it as the store uses.

/// A reply of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A short text, such as `OK`.
    Status(String),
    /// An error, with its code first.
    Error(String),
    /// An integer.
    Int(i64),
    /// A byte string.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// An array.
    Array(Vec<Self>),
    /// A map with text keys. RESP2 sends it as an array.
    Map(Vec<(String, Self)>),
}

/// A command: its name and arguments.
pub type Args = Vec<Vec<u8>>;

/// The bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError;

impl Reply {
    /// Returns the status `OK`.
    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    /// Returns an error.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// Returns a byte string.
    pub fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    /// Appends the reply in RESP3, or else RESP2.
    pub fn encode(&self, resp3: bool, out: &mut Vec<u8>) {
        let line = |kind: char, text: &str, out: &mut Vec<u8>| {
            out.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
        };
        match self {
            Self::Status(text) => line('+', text, out),
            Self::Error(text) => line('-', text, out),
            Self::Int(number) => line(':', &number.to_string(), out),
            Self::Bulk(bytes) => {
                line('$', &bytes.len().to_string(), out);
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil if resp3 => line('_', "", out),
            Self::Nil => line('$', "-1", out),
            Self::Array(items) => {
                line('*', &items.len().to_string(), out);
                items.iter().for_each(|item| item.encode(resp3, out));
            }
            Self::Map(pairs) => {
                let (kind, count) = if resp3 { ('%', pairs.len()) } else { ('*', 2 * pairs.len()) };
                line(kind, &count.to_string(), out);
                for (name, value) in pairs {
                    Self::bulk(name.as_bytes()).encode(resp3, out);
                    value.encode(resp3, out);
                }
            }
        }
    }
}

/// Removes the first command from `bytes`; `None` if it is incomplete.
pub fn take_command(bytes: &mut Vec<u8>) -> Result<Option<Args>, ProtocolError> {
    let mut rest = bytes.as_slice();
    let Some(count) = header(&mut rest, b'*')? else { return Ok(None) };
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(length) = header(&mut rest, b'$')? else { return Ok(None) };
        if rest.len() < length + 2 {
            return Ok(None);
        }
        args.push(rest[..length].to_vec());
        rest = &rest[length + 2..];
    }
    let used = bytes.len() - rest.len();
    bytes.drain(..used);
    Ok(Some(args))
}

/// Reads a line such as `*3`.
fn header(rest: &mut &[u8], kind: u8) -> Result<Option<usize>, ProtocolError> {
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, tail) = rest.split_at(end);
    let digits = line.strip_prefix(&[kind]).ok_or(ProtocolError)?;
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    *rest = &tail[2..];
    number.map(Some).ok_or(ProtocolError)
}
