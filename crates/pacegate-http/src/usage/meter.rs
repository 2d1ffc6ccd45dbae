//! Reads the usage from the parts of a body.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use serde_json::Value;

use super::Usage;

/// Reads the usage while a body passes.
#[derive(Debug)]
pub(super) struct Meter {
    form: Form,
    /// The last number at each pointer.
    found: Vec<Option<u64>>,
}

/// The form of a body.
#[derive(Debug)]
enum Form {
    /// One JSON text, in parts that share their memory with the body.
    Whole { parts: Vec<Bytes>, bytes: usize },
    /// One JSON text in each line, after this prefix.
    Lines { prefix: &'static [u8], line: BytesMut, is_too_long: bool },
}

impl Meter {
    /// Creates a meter for a response, or `None` if its body is compressed or not JSON.
    pub(super) fn new(usage: &Usage, headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).map_or("", |value| value.to_str().unwrap_or_default());
        if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
            return None;
        }
        let kind = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
        let lines = |prefix| Form::Lines { prefix, line: BytesMut::new(), is_too_long: false };
        let form = match &*kind.to_ascii_lowercase() {
            "text/event-stream" => lines(b"data:"),
            "application/x-ndjson" | "application/jsonl" => lines(b""),
            kind if kind == "application/json" || kind.ends_with("+json") => {
                Form::Whole { parts: Vec::new(), bytes: 0 }
            }
            _ => return None,
        };
        Some(Self { form, found: vec![None; usage.pointers.len()] })
    }

    /// Reads the next part. Returns false if the usage cannot be known any more.
    pub(super) fn read(&mut self, usage: &Usage, data: &Bytes) -> bool {
        match &mut self.form {
            Form::Whole { parts, bytes } => {
                *bytes += data.len();
                parts.push(data.clone());
                *bytes <= usage.max_bytes
            }
            Form::Lines { prefix, line, is_too_long } => {
                let mut rest = &data[..];
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    append(line, &rest[..end], usage.max_bytes, is_too_long);
                    read_line(usage, &mut self.found, prefix, line);
                    line.clear();
                    (*is_too_long, rest) = (false, &rest[end + 1..]);
                }
                append(line, rest, usage.max_bytes, is_too_long);
                true
            }
        }
    }

    /// Returns the sum of all numbers, or `None` if there is none.
    pub(super) fn finish(mut self, usage: &Usage) -> Option<u64> {
        match &self.form {
            Form::Whole { parts, .. } => match &parts[..] {
                [one] => read_json(usage, &mut self.found, one),
                parts => read_json(usage, &mut self.found, &parts.concat()),
            },
            Form::Lines { prefix, line, .. } => {
                read_line(usage, &mut self.found, prefix, line);
            }
        }
        let numbers = self.found.into_iter().flatten();
        numbers.reduce(u64::saturating_add)
    }
}

/// Appends a part of a line, unless the line gets too long.
fn append(line: &mut BytesMut, part: &[u8], max: usize, is_too_long: &mut bool) {
    *is_too_long |= line.len() + part.len() > max;
    match *is_too_long {
        true => line.clear(),
        false => line.extend_from_slice(part),
    }
}

fn read_line(usage: &Usage, found: &mut [Option<u64>], prefix: &[u8], line: &[u8]) {
    if let Some(json) = line.strip_prefix(prefix) {
        read_json(usage, found, json);
    }
}

fn read_json(usage: &Usage, found: &mut [Option<u64>], json: &[u8]) {
    // Most events of a stream have no usage, and need not be parsed.
    let is_named = |pointer: &String| {
        let name = pointer.rsplit('/').next().unwrap_or_default().as_bytes();
        name.is_empty() || name.contains(&b'~') || json.windows(name.len()).any(|it| it == name)
    };
    if !usage.pointers.iter().any(is_named) {
        return;
    }
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
    for (pointer, found) in usage.pointers.iter().zip(found) {
        if let Some(number) = value.pointer(pointer).and_then(Value::as_u64) {
            *found = Some(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(usage: &Usage, kind: &'static str, body: &str, part: usize) -> Option<u64> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
        let mut meter = Meter::new(usage, &headers)?;
        let mut parts = body.as_bytes().chunks(part).map(Bytes::copy_from_slice);
        parts.all(|part| meter.read(usage, &part)).then(|| meter.finish(usage))?
    }

    const EVENTS: &str = "event: message\r\ndata: {\"choices\": [{\"delta\": \"a\"}], \"usage\": null}\r\n\r\n\
                          data:{\"usage\": {\"total_tokens\": 5}}\n\ndata: {\"usage\":{\"total_tokens\":17}}\n\n\
                          data: {\"usage\": {\"total_tokens\": -1}}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_parts_of_a_body_do_not_matter() {
        let usage = Usage::json("/usage/total_tokens");
        let json = r#"{"text": "{", "usage": {"total_tokens": 12}}"#;
        let lines = "{\"usage\": {\"total_tokens\": 1}}\n\n{\"usage\": {\"total_tokens\": 2}}";
        for part in 1..=EVENTS.len() {
            assert_eq!(read(&usage, "application/json; charset=utf-8", json, part), Some(12));
            assert_eq!(read(&usage, "application/problem+json", json, part), Some(12));
            assert_eq!(read(&usage, "text/event-stream", EVENTS, part), Some(17), "the last");
            assert_eq!(read(&usage, "application/x-ndjson", lines, part), Some(2));
        }
    }

    #[test]
    fn several_numbers_are_added() {
        let usage = Usage::json("/message/usage/input").and("/usage/output");
        let events = "data: {\"message\": {\"usage\": {\"input\": 30, \"output\": 1}}}\n\n\
                      data: {\"usage\": {\"output\": 4}}\n\ndata: {\"usage\": {\"output\": 9}}\n\n";
        assert_eq!(read(&usage, "text/event-stream", events, 7), Some(39));
        assert_eq!(read(&usage, "application/json", "{\"usage\": {\"output\": 2}}", 7), Some(2));
    }

    #[test]
    fn other_bodies_have_no_usage() {
        let usage = Usage::json("/usage/total_tokens").max_bytes(40);
        let fits = r#"{"usage": {"total_tokens": 12}}"#;
        assert_eq!(read(&usage, "application/json", fits, 9), Some(12));
        let long = format!("{fits}          ");
        assert_eq!(read(&usage, "application/json", &long, 9), None);
        let after = format!("data: {}\ndata: {fits}\n", "x".repeat(100));
        assert_eq!(read(&usage, "text/event-stream", &after, 9), Some(12), "after a long line");
        for body in ["", "{", "[]", "{\"usage\": 3}", "{\"usage\": {\"total_tokens\": \"3\"}}"] {
            assert_eq!(read(&usage, "application/json", body, 9), None, "{body}");
        }
        assert_eq!(read(&usage, "text/plain", fits, 9), None);
        let headers =
            [(header::CONTENT_TYPE, "application/json"), (header::CONTENT_ENCODING, "br")];
        let headers = headers.map(|(name, value)| (name, value.parse().unwrap()));
        assert!(Meter::new(&usage, &HeaderMap::from_iter(headers)).is_none());
    }
}
