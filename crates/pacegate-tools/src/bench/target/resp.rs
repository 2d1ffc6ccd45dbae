//! The Redis protocol (RESP) and its dialects.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::{
    CONNECT, Dialect, Greeting, InvalidReply, Prepared, Reply, TargetError, TargetOptions,
    Template, Url, Wire, in_vain, is_short, sample_key, seconds, shown,
};

/// A script and its arguments.
#[derive(Clone, Debug)]
pub struct Script {
    /// Lua source.
    pub text: String,
    /// May contain the placeholders `{key}`, `{cost}`, `{amount}`, `{burst}`, `{seconds}` and `{millis}`.
    pub args: Vec<String>,
}

/// Meaning of the first integer in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Reading {
    /// 1 is allowed, anything else denied
    One,
    /// 0 is allowed, anything else denied
    Zero,
    /// A count; allowed up to the amount of the limit
    Count,
}

/// Parses replies.
#[derive(Clone, Debug)]
pub struct RespReader {
    reading: Reading,
    amount: u64,
}

/// The relevant part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First<'a> {
    Int(i64),
    Error(&'a [u8]),
    Other,
}

/// Maximum nesting depth of arrays in a reply.
const DEPTH: u32 = 8;
/// Maximum length of a string in a reply.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Error text for a reply without a decision.
pub(super) const NO_INTEGER: &str = "reply without an integer";
/// Maximum size of a script.
const MAX_SCRIPT_BYTES: usize = 256 * 1024;

pub(super) fn prepare<'a>(
    options: &'a TargetOptions<'_>,
    dialect: Dialect,
    url: &Url<'_>,
    address: SocketAddr,
) -> Result<Prepared<'a>, TargetError> {
    let mut greeting = Greeting::default();
    greet(&mut greeting, url, options.api_key);
    let (key, limit) = (sample_key(options.prefix), &options.limit);
    let reading = match dialect {
        Dialect::ClThrottle => Reading::Zero,
        Dialect::Script => options.reading,
        Dialect::Incr => Reading::Count,
        _ => Reading::One,
    };
    let words: Box<dyn Fn(u32) -> Vec<String> + 'a> = match dialect {
        Dialect::ClThrottle | Dialect::Throttle => {
            let seconds = seconds(dialect, limit)?;
            let (name, burst) = match dialect {
                Dialect::ClThrottle => ("CL.THROTTLE", limit.capacity().saturating_sub(1)),
                _ => ("THROTTLE", limit.capacity()),
            };
            let key = key.clone();
            Box::new(move |cost| {
                let numbers = [burst, limit.amount(), seconds, u64::from(cost)];
                let numbers = numbers.iter().map(u64::to_string);
                [name.to_owned(), key.clone()].into_iter().chain(numbers).collect()
            })
        }
        Dialect::Script => script_words(options, key.clone(), address, &greeting)?,
        Dialect::Incr => {
            let key = key.clone();
            Box::new(move |cost| match cost {
                1 => vec!["INCR".to_owned(), key.clone()],
                _ => vec!["INCRBY".to_owned(), key.clone(), cost.to_string()],
            })
        }
        _ => check_words(options, key.clone()),
    };
    let write = Box::new(move |cost| Template::new(&command(&words(cost)), key.as_bytes()));
    Ok((Wire::Resp(RespReader { reading, amount: limit.amount() }), greeting, write))
}

/// Builds PACEGATE.CHECK commands, for policies or for an inline limit.
fn check_words<'a>(
    options: &'a TargetOptions<'_>,
    key: String,
) -> Box<dyn Fn(u32) -> Vec<String> + 'a> {
    Box::new(move |cost| {
        let mut words = vec!["PACEGATE.CHECK".to_owned()];
        if cost != 1 {
            words.extend(["COST".to_owned(), cost.to_string()]);
        }
        match options.attribute {
            Some(name) => {
                if !options.domain.is_empty() {
                    words.extend(["DOMAIN".to_owned(), options.domain.to_owned()]);
                }
                words.extend(["ATTR".to_owned(), name.to_owned(), key.clone()]);
            }
            None => words.extend([
                "KEY".to_owned(),
                key.clone(),
                "LIMIT".to_owned(),
                options.limit.to_string(),
            ]),
        }
        words
    })
}

/// Loads the script into the server and builds EVALSHA commands for it.
fn script_words<'a>(
    options: &'a TargetOptions<'_>,
    key: String,
    address: SocketAddr,
    greeting: &Greeting,
) -> Result<Box<dyn Fn(u32) -> Vec<String> + 'a>, TargetError> {
    let script = options.script.as_ref().ok_or(TargetError::NoScript)?;
    if script.text.len() > MAX_SCRIPT_BYTES {
        return Err(TargetError::TooLong("script"));
    }
    for arg in &script.args {
        is_short("script argument", arg)?;
    }
    let digest = load(address, greeting, &script.text).map_err(TargetError::Script)?;
    let limit = options.limit;
    Ok(Box::new(move |cost| {
        let fill = |text: &String| {
            let values = [
                ("{key}", key.clone()),
                ("{cost}", cost.to_string()),
                ("{amount}", limit.amount().to_string()),
                ("{burst}", limit.capacity().to_string()),
                ("{seconds}", limit.period().as_secs().to_string()),
                ("{millis}", limit.period().as_millis().to_string()),
            ];
            values.iter().fold(text.clone(), |text, (name, value)| text.replace(name, value))
        };
        let words = ["EVALSHA".to_owned(), digest.clone(), "1".to_owned(), key.clone()];
        words.into_iter().chain(script.args.iter().map(fill)).collect()
    }))
}

/// Loads a script with SCRIPT LOAD and returns its digest.
fn load(address: SocketAddr, greeting: &Greeting, script: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.write_all(&greeting.bytes)?;
    stream.write_all(&command(&["SCRIPT".to_owned(), "LOAD".to_owned(), script.to_owned()]))?;
    let mut input = Vec::new();
    // The last reply is the digest. If it is something else, an earlier reply was an error.
    loop {
        let mut part = [0; 1_024];
        let read = stream.read(&mut part).map_err(in_vain)?;
        input.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&input);
        if let Some((_, digest)) = text.split_once("$40\r\n")
            && digest.len() >= 42
        {
            return Ok(digest[..40].to_owned());
        }
        let refused = text.lines().find(|line| line.starts_with('-'));
        if refused.is_some() || read == 0 || input.len() > MAX_RESPONSE_BYTES {
            return Err(io::Error::other(shown(
                refused.unwrap_or("no digest received").as_bytes(),
            )));
        }
    }
}

/// Adds AUTH to the handshake if there is a password.
fn greet(greeting: &mut Greeting, url: &Url<'_>, api_key: Option<&str>) {
    let Some(password) = url.password.as_deref().or(api_key) else { return };
    let words = ["AUTH"].into_iter().chain(url.user.as_deref()).chain([password]);
    greeting.bytes.extend(command(&words.map(str::to_owned).collect::<Vec<_>>()));
    greeting.replies += 1;
}

fn command(words: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl RespReader {
    #[inline]
    pub(super) fn read(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, InvalidReply> {
        let Some((length, first)) = value(input, DEPTH)? else { return Ok(None) };
        Ok(Some((length, self.reply(first))))
    }

    fn reply(&self, first: First<'_>) -> Reply {
        let allowed = match (first, self.reading) {
            (First::Int(int), Reading::One) => int == 1,
            (First::Int(int), Reading::Zero) => int == 0,
            (First::Int(int), Reading::Count) => i128::from(int) <= i128::from(self.amount),
            (First::Error(text), _) => return Reply::Failed(shown(text)),
            (First::Other, _) => return Reply::Failed(NO_INTEGER.to_owned()),
        };
        if allowed { Reply::Allowed } else { Reply::Denied }
    }
}

/// Returns the length of a reply and the first integer in it.
fn value(input: &[u8], depth: u32) -> Result<Option<(usize, First<'_>)>, InvalidReply> {
    let Some((line, end)) = line(input)? else { return Ok(None) };
    let Some((&kind, line)) = line.split_first() else { return Err(InvalidReply("empty line")) };
    match kind {
        b':' => Ok(Some((end, First::Int(int(line)?)))),
        b'-' => Ok(Some((end, First::Error(line)))),
        b'+' | b'_' | b'#' => Ok(Some((end, First::Other))),
        b'$' => {
            let Ok(length) = usize::try_from(int(line)?) else {
                return Ok(Some((end, First::Other)));
            };
            if length > MAX_RESPONSE_BYTES {
                return Err(InvalidReply("string too long"));
            }
            let Some(text) = input.get(end..end + length + 2) else { return Ok(None) };
            let first = int(&text[..length]).map_or(First::Other, First::Int);
            Ok(Some((end + length + 2, first)))
        }
        b'*' => array(input, end, int(line)?, depth),
        _ => Err(InvalidReply("unknown RESP2 reply type")),
    }
}

fn array(
    input: &[u8],
    mut end: usize,
    count: i64,
    depth: u32,
) -> Result<Option<(usize, First<'_>)>, InvalidReply> {
    if depth == 0 {
        return Err(InvalidReply("arrays nested too deeply"));
    }
    let mut first = First::Other;
    for _ in 0..count {
        let Some((length, found)) = value(&input[end..], depth - 1)? else { return Ok(None) };
        if end > MAX_RESPONSE_BYTES {
            return Err(InvalidReply("array too long"));
        }
        end += length;
        if first == First::Other {
            first = found;
        }
    }
    Ok(Some((end, first)))
}

/// Returns a line without its terminator, and the offset of the next one.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, InvalidReply> {
    match memchr::memchr(b'\n', input) {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some((&input[..end - 1], end + 1))),
        Some(_) => Err(InvalidReply("line does not end with CR LF")),
        None if input.len() > MAX_RESPONSE_BYTES => Err(InvalidReply("line too long")),
        None => Ok(None),
    }
}

fn int(digits: &[u8]) -> Result<i64, InvalidReply> {
    let text = std::str::from_utf8(digits).ok();
    text.and_then(|text| text.parse().ok()).ok_or(InvalidReply("invalid number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reading: Reading, input: &str) -> Option<(usize, Reply)> {
        RespReader { reading, amount: 10 }.read(input.as_bytes()).unwrap()
    }

    #[test]
    fn the_first_integer_decides() {
        let cell = "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
        assert_eq!(read(Reading::Zero, cell), Some((cell.len(), Reply::Allowed)));
        assert_eq!(read(Reading::One, cell), Some((cell.len(), Reply::Denied)));
        assert_eq!(read(Reading::Count, ":10\r\n:11\r\n"), Some((5, Reply::Allowed)));
        assert_eq!(read(Reading::Count, ":11\r\n"), Some((5, Reply::Denied)));
        let named = "*4\r\n$7\r\nallowed\r\n:1\r\n$6\r\npolicy\r\n$-1\r\n";
        assert_eq!(read(Reading::One, named), Some((named.len(), Reply::Allowed)));
        let text = "*2\r\n$1\r\n1\r\n*1\r\n:5\r\n";
        assert_eq!(read(Reading::One, text), Some((text.len(), Reply::Allowed)));
        let error = "-ERR no\x1b[1m\r\n";
        let said = Reply::Failed("ERR no\\u{1b}[1m".to_owned());
        assert_eq!(read(Reading::One, error), Some((error.len(), said)));
    }

    #[test]
    fn incomplete_replies_are_not_parsed_yet() {
        let whole = "*3\r\n:1\r\n$4\r\nabcd\r\n*1\r\n:3\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(Reading::One, &whole[..end]), None, "{end}");
        }
        assert_eq!(read(Reading::One, whole), Some((whole.len(), Reply::Allowed)));
    }

    #[test]
    fn malformed_replies_are_rejected() {
        let reader = RespReader { reading: Reading::One, amount: 1 };
        let deep = "*1\r\n".repeat(20);
        for input in ["hello\r\n", ":1\n", ":x\r\n", "$99999999\r\n", &deep, "\r\n"] {
            assert!(reader.read(input.as_bytes()).is_err(), "{input:?}");
        }
    }
}
