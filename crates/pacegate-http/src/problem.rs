//! Why a request was not served, as RFC 9457 has it.

use http::{HeaderValue, StatusCode};
use pacegate::PolicyName;

use crate::headers::write_number;

/// The content type of a problem.
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The type of a denial.
pub(crate) const QUOTA_EXCEEDED: &str =
    "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// What a problem says. Nothing of the request is ever in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Problem<'a> {
    pub(crate) status: StatusCode,
    /// A URI that stays the same when the words change.
    pub(crate) kind: &'a str,
    /// Without quotes, backslashes and control characters.
    pub(crate) title: &'a str,
    pub(crate) policy: Option<PolicyName>,
}

impl Problem<'_> {
    pub(crate) fn to_json(self) -> Vec<u8> {
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
        body.push(b'}');
        body
    }
}
