//! Problem details (RFC 9457) of requests that are not served.

use http::{HeaderValue, StatusCode};
use pacegate::{Limit, PolicyName};

use crate::headers::write_number;

/// The content type of a problem.
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The type of a denial.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The content of problem details. It repeats nothing of the request, except for `details`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem<'a> {
    pub(crate) status: StatusCode,
    /// A URI that identifies the problem; the title may change.
    pub(crate) kind: &'a str,
    /// Without quotes, backslashes and control characters.
    pub(crate) title: &'a str,
    pub(crate) policy: Option<PolicyName>,
    pub(crate) details: Option<Details>,
}

/// The key, the limit and the time to retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Details {
    /// The values of the key, separated by colons.
    pub(crate) key: String,
    pub(crate) limit: Limit,
    /// In whole seconds, rounded up.
    pub(crate) retry_after: Option<u64>,
}

impl Problem<'_> {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(256);
        for part in ["{\"type\":\"", self.kind, "\",\"title\":\"", self.title, "\",\"status\":"] {
            body.extend_from_slice(part.as_bytes());
        }
        write_number(&mut body, self.status.as_u16().into());
        if let Some(policy) = self.policy {
            body.extend_from_slice(b",\"violated-policies\":[\"");
            body.extend_from_slice(policy.as_str().as_bytes());
            body.extend_from_slice(b"\"]");
        }
        if let Some(details) = &self.details {
            details.write(&mut body);
        }
        body.push(b'}');
        body
    }
}

impl Details {
    /// Appends the members, each after a comma.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"key\":");
        write_text(out, &self.key);
        out.extend_from_slice(b",\"limit\":");
        write_text(out, &self.limit.to_string());
        out.extend_from_slice(b",\"window\":");
        write_window(out, &self.limit);
        if let Some(seconds) = self.retry_after {
            out.extend_from_slice(b",\"retry_after\":");
            write_number(out, seconds);
        }
    }
}

/// Adds the period of a limit in seconds, such as `60` or `1.500`.
pub fn write_window(out: &mut Vec<u8>, limit: &Limit) {
    let period = limit.period();
    write_number(out, period.as_secs());
    if period.subsec_nanos() > 0 {
        let text = match period.subsec_micros() {
            micros if micros.is_multiple_of(1_000) => format!(".{:03}", micros / 1_000),
            micros => format!(".{micros:06}"),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

/// Adds text as a JSON string.
fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend_from_slice(format!("\\{char}").as_bytes()),
            char if char.is_control() => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(char)).as_bytes());
            }
            char => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
