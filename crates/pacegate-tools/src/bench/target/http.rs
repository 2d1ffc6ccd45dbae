//! HTTP/1.1 with a JSON body.

use serde_json::json;

use super::{
    Dialect, Greeting, InvalidReply, Prepared, Reply, TargetError, TargetOptions, Template, Url,
    Wire, sample_key, seconds, shown,
};

/// Parses responses.
#[derive(Clone, Debug)]
pub struct HttpReader {
    says: Says,
}

/// The part of a response that shows a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// The status 429.
    Status,
    /// `allowed` in the body, regardless of the status.
    Body,
}

/// Maximum size of the head and of the body of a response.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

pub(super) fn prepare<'a>(
    options: &'a TargetOptions<'_>,
    dialect: Dialect,
    url: &Url<'_>,
) -> Result<Prepared<'a>, TargetError> {
    let key = sample_key(options.prefix);
    let head = head(options, dialect, url);
    let (says, seconds) = match dialect {
        Dialect::ThrottlecrabHttp => (Says::Body, seconds(dialect, &options.limit)?),
        _ => (Says::Status, 0),
    };
    let write = move |cost: u32| {
        let mut body = match (says, options.attribute) {
            (Says::Body, _) => json!({
                "key": key, "max_burst": options.limit.capacity(), "quantity": cost,
                "count_per_period": options.limit.amount(), "period": seconds,
            }),
            (Says::Status, Some(name)) => {
                let mut body = json!({ "attributes": { name: key } });
                if !options.domain.is_empty() {
                    body["domain"] = options.domain.into();
                }
                body
            }
            (Says::Status, None) => json!({ "key": key, "limit": options.limit.to_string() }),
        };
        if says == Says::Status && cost != 1 {
            body["cost"] = cost.into();
        }
        let body = body.to_string();
        let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let quoted = json!(key).to_string();
        Template::new(text.as_bytes(), quoted.trim_matches('"').as_bytes())
    };
    Ok((Wire::Http(HttpReader { says }), Greeting::default(), Box::new(write)))
}

fn head(options: &TargetOptions<'_>, dialect: Dialect, url: &Url<'_>) -> String {
    let path = if dialect == Dialect::ThrottlecrabHttp { "/throttle" } else { "/v1/check" };
    let key = options.api_key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    let key = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
    let host = url.host;
    format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{key}")
}

impl HttpReader {
    #[inline]
    pub(super) fn read(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, InvalidReply> {
        let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") else {
            return match input.len() > MAX_RESPONSE_BYTES {
                true => Err(InvalidReply("response head too long")),
                false => Ok(None),
            };
        };
        let head = &input[..end + 2];
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', status @ ..] = head else {
            return Err(InvalidReply("not HTTP/1.1"));
        };
        let length = content_length(head)?;
        let Some(body) = input.get(end + 4..end + 4 + length) else { return Ok(None) };
        Ok(Some((end + 4 + length, self.reply(status, body))))
    }

    fn reply(&self, status: &[u8], body: &[u8]) -> Reply {
        let failed = || {
            let status = String::from_utf8_lossy(&status[..status.len().min(3)]);
            Reply::Failed(format!("{status}: {}", shown(body)))
        };
        match (self.says, status.get(..3)) {
            (Says::Status, Some(b"200")) => Reply::Allowed,
            (Says::Status, Some(b"429")) => Reply::Denied,
            (Says::Body, Some(b"200" | b"429")) => {
                let has = |text: &str| memchr::memmem::find(body, text.as_bytes()).is_some();
                match (has("\"allowed\":true"), has("\"allowed\":false")) {
                    (true, false) => Reply::Allowed,
                    (false, true) => Reply::Denied,
                    _ => failed(),
                }
            }
            _ => failed(),
        }
    }
}

/// Parses the Content-Length header, without which the next response cannot be found.
fn content_length(head: &[u8]) -> Result<usize, InvalidReply> {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|&byte| byte == b'\n');
    let is_it = |line: &&[u8]| line.get(..NAME.len()).is_some_and(|n| n.eq_ignore_ascii_case(NAME));
    let line = lines.find(is_it).ok_or(InvalidReply("response without Content-Length"))?;
    let digits = line[NAME.len()..].trim_ascii();
    let wrong = InvalidReply("invalid Content-Length");
    if digits.is_empty() || digits.len() > 7 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(wrong);
    }
    let length = digits.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    if length > MAX_RESPONSE_BYTES { Err(wrong) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(says: Says, input: &str) -> Option<(usize, Reply)> {
        HttpReader { says }.read(input.as_bytes()).unwrap()
    }

    #[test]
    fn the_status_or_the_body_decides() {
        let allowed = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx: y\r\n\r\n{}";
        assert_eq!(read(Says::Status, allowed), Some((allowed.len(), Reply::Allowed)));
        let denied = "HTTP/1.1 429 Too Many Requests\r\ncontent-length:0\r\n\r\nHTTP/1.1";
        assert_eq!(read(Says::Status, denied), Some((denied.len() - 8, Reply::Denied)));
        let body = "HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{\"allowed\":false}";
        assert_eq!(read(Says::Body, body), Some((body.len(), Reply::Denied)));
        let other = "HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nlate";
        let failed = Reply::Failed("503: late".to_owned());
        assert_eq!(read(Says::Status, other), Some((other.len(), failed)));
    }

    #[test]
    fn incomplete_responses_are_not_parsed_yet() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        for end in 0..whole.len() {
            assert_eq!(read(Says::Status, &whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn malformed_responses_are_rejected() {
        let reader = HttpReader { says: Says::Status };
        for input in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
        ] {
            assert!(reader.read(input.as_bytes()).is_err(), "{input:?}");
        }
    }
}
