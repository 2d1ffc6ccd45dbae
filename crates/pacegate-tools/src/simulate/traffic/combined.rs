//! The common and combined log formats: `ip - user [time] "GET /path HTTP/1.1" 200 512 "referer" "agent"`.

use std::{net::IpAddr, ops::Range};

use memchr::{memchr, memchr2};
use smallvec::SmallVec;

use super::{
    Malformed,
    format::Map,
    instant::Instants,
    row::{Attributes, Values},
};

/// Parses lines in the common or combined format; ignores additional fields at the end.
#[derive(Debug)]
pub(super) struct Combined {
    instants: Instants,
    /// For each field, the indexes of the attributes that it provides.
    attributes: [SmallVec<[usize; 1]>; FIELDS.len()],
    /// True if a field after the status is used.
    whole: bool,
}

/// The fields, named after the attributes that they provide by default.
const FIELDS: [&str; 10] = [
    "ip",
    "user",
    "method",
    "path",
    "host",
    "protocol",
    "status",
    "bytes",
    "referer",
    "user_agent",
];

impl Combined {
    /// Maps fields to attributes: as given in the map, otherwise by name.
    pub(super) fn new(attributes: &Attributes, map: &Map) -> Self {
        let places = |field: &&str| {
            let is_it = |name: &String| map.get(name).unwrap_or(name) == field;
            let named = attributes.0.iter().enumerate().filter(|(_, name)| is_it(name));
            named.map(|(place, _)| place).collect()
        };
        let attributes: [SmallVec<_>; _] = std::array::from_fn(|field| places(&FIELDS[field]));
        let whole = attributes[6..].iter().any(|places| !places.is_empty());
        Self { instants: Instants::default(), attributes, whole }
    }

    /// Returns true if a line is in this format.
    pub(super) fn fits(line: &[u8]) -> bool {
        let mut reader = Self::new(&Attributes::default(), &Map::default());
        head(line).is_some_and(|head| reader.instants.common(&line[head.time]).is_some())
    }

    /// Parses a line: stores its values and returns its timestamp.
    #[inline]
    pub(super) fn read(&mut self, line: &[u8], values: &mut Values<'_>) -> Result<u64, Malformed> {
        let head = head(line).ok_or(Malformed::NotCommon)?;
        let at = self.instants.common(&line[head.time]).ok_or(Malformed::Time)?;
        let mut put = |field: usize, place: Range<usize>| {
            for &attribute in &self.attributes[field] {
                match (&line[place.clone()], memchr(b'\\', &line[place.clone()])) {
                    (b"" | b"-", _) => {}
                    (value, Some(_)) => values.put_meant(attribute, &unescaped(value)),
                    (_, None) => values.put(attribute, line, place.clone()),
                }
            }
        };
        put(0, head.ip);
        put(1, head.user);
        put(4, head.host);
        let request = quoted(line, head.end).ok_or(Malformed::NotCommon)?;
        let end = request.end + 1;
        let [method, path, protocol] = words(line, request);
        put(2, method);
        put(3, path);
        put(5, protocol);
        if self.whole {
            let status = word(line, end);
            let bytes = word(line, status.end);
            let after = bytes.end;
            put(6, status);
            put(7, bytes);
            if let Some(referer) = quoted(line, after) {
                let after = referer.end + 1;
                put(8, referer);
                if let Some(agent) = quoted(line, after) {
                    put(9, agent);
                }
            }
        }
        Ok(at)
    }
}

struct Head {
    /// The virtual host at the start of the line, or empty.
    host: Range<usize>,
    ip: Range<usize>,
    user: Range<usize>,
    time: Range<usize>,
    end: usize,
}

fn head(line: &[u8]) -> Option<Head> {
    let blank = |from: usize| Some(from + memchr(b' ', &line[from..])?);
    let (mut host, mut ip) = (0..0, 0..blank(0)?);
    let mut ident = blank(ip.end + 1)?;
    if is_host(&line[ip.clone()], &line[ip.end + 1..ident]) {
        (host, ip) = (ip.clone(), ip.end + 1..ident);
        ident = blank(ident + 1)?;
    }
    let open = ident + memchr(b'[', &line[ident..])?;
    let close = open + memchr(b']', &line[open..])?;
    // User names may contain spaces.
    let user = ident + 1..open.saturating_sub(1).max(ident + 1);
    let time = open + 1..close;
    (!ip.is_empty()).then_some(Head { host, ip, user, time, end: close + 1 })
}

/// Returns true if a line begins with the virtual host, followed by the client, as in Apache's
/// `vhost_combined`. The client may be a comma-separated list of addresses if requests came through proxies.
fn is_host(first: &[u8], second: &[u8]) -> bool {
    let is_address =
        |word: &[u8]| std::str::from_utf8(word).is_ok_and(|word| word.parse::<IpAddr>().is_ok());
    second != b"-" && !first.ends_with(b",") && is_address(second) && !is_address(first)
}

/// Returns the range between the next two quotes. An escaped quote (`\"`) does not end it.
fn quoted(line: &[u8], from: usize) -> Option<Range<usize>> {
    let start = from + memchr(b'"', line.get(from..)?)? + 1;
    let mut end = start;
    loop {
        end += memchr2(b'"', b'\\', line.get(end..)?)?;
        match line[end] {
            b'"' => return Some(start..end),
            _ => end += 2,
        }
    }
}

/// Decodes the escapes of nginx and Apache, such as `\x16`, `\"` or `\n`. Leaves others unchanged.
fn unescaped(value: &[u8]) -> Vec<u8> {
    let mut meant = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(place) = memchr(b'\\', rest) {
        meant.extend_from_slice(&rest[..place]);
        let (byte, length) = match &rest[place + 1..] {
            [b'x', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (16 * high + low, 4),
                _ => (b'\\', 1),
            },
            [quoted @ (b'"' | b'\\'), ..] => (*quoted, 2),
            [b'b', ..] => (8, 2),
            [b't', ..] => (b'\t', 2),
            [b'n', ..] => (b'\n', 2),
            [b'v', ..] => (11, 2),
            [b'r', ..] => (b'\r', 2),
            _ => (b'\\', 1),
        };
        meant.push(byte);
        rest = &rest[place + length..];
    }
    meant.extend_from_slice(rest);
    meant
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Returns the next word at or after a space.
fn word(line: &[u8], from: usize) -> Range<usize> {
    let rest = line.get(from..).unwrap_or_default();
    let start = from + rest.iter().take_while(|byte| **byte == b' ').count();
    let rest = line.get(start..).unwrap_or_default();
    start.min(line.len())..start.min(line.len()) + memchr(b' ', rest).unwrap_or(rest.len())
}

/// Splits a request line into method, path and protocol. All are empty if the client did not send HTTP.
fn words(line: &[u8], request: Range<usize>) -> [Range<usize>; 3] {
    let none = request.end..request.end;
    let Some(first) = memchr(b' ', &line[request.clone()]) else {
        return [none.clone(), none.clone(), none];
    };
    let path = request.start + first + 1;
    let second = memchr(b' ', &line[path..request.end]).map_or(request.end, |end| path + end);
    let protocol = (second + 1).min(request.end);
    [request.start..path - 1, path..second, protocol..request.end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        for (written, meant) in [
            (r"/caf\xC3\xA9", "/caf\u{e9}".as_bytes()),
            (r#"/a\"b\\c\x22"#, b"/a\"b\\c\""),
            (r"\t\n\r\b\v", b"\t\n\r\x08\x0b"),
            (r"\xC\xZZ\q\", br"\xC\xZZ\q\"),
        ] {
            assert_eq!(unescaped(written.as_bytes()), meant, "{written}");
        }
    }
}
