//! A sample request for a configured policy, which `pacegate serve` suggests to try.

use pacegate::{
    Limit, Policy, PolicySet, Request,
    policy::{Condition, Mode},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A request, as arguments of `curl`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sample {
    domain: String,
    attributes: Vec<(String, String)>,
}

impl Sample {
    /// Creates a request that one of the policies limits; prefers policies that are not in shadow mode. Returns `None`
    /// if it finds no such request.
    pub(super) fn of(policies: &PolicySet) -> Option<Self> {
        let all = policies.policies();
        let (enforced, shadow): (Vec<_>, Vec<_>) =
            all.iter().partition(|policy| policy.mode == Mode::Enforce);
        enforced.into_iter().chain(shadow).find_map(|policy| {
            let sample = Self::matching(policy);
            sample.is_limited_by(policy, policies).then_some(sample)
        })
    }

    /// Creates a request that meets the conditions of a policy and has the attributes of its key.
    fn matching(policy: &Policy) -> Self {
        let mut sample = Self { domain: policy.domain.clone(), attributes: Vec::new() };
        for (name, condition) in policy.matching.conditions() {
            if let Some(value) = value_for(name, condition) {
                sample.attributes.push((name.to_owned(), value));
            }
        }
        for name in &policy.per {
            if sample.attributes.iter().all(|(known, _)| known != name) {
                sample.attributes.push((name.clone(), typical_value(name)));
            }
        }
        sample
    }

    /// Returns true if the policy limits this request.
    fn is_limited_by(&self, policy: &Policy, policies: &PolicySet) -> bool {
        let request = self.request();
        policies.covering(&request).any(|(it, limits)| it.name == policy.name && can_check(limits))
    }

    fn request(&self) -> Request<'_> {
        let request = Request::new().in_domain(&self.domain);
        self.attributes.iter().fold(request, |request, (name, value)| request.with(name, value))
    }
}

impl Sample {
    /// Returns the `curl` arguments that check and charge the request.
    pub(super) fn check(&self, url: &str) -> String {
        // curl supports `--json` only since version 7.82.
        format!("-H 'Content-Type: application/json' -d {} {url}/v1/check", quoted(&self.body()))
    }

    /// Returns the `curl` arguments that read the counters of the request without charging it.
    pub(super) fn peek(&self, url: &str) -> String {
        let domain = (!self.domain.is_empty()).then(|| format!("domain={}", encoded(&self.domain)));
        let attributes = self.attributes.iter();
        let attributes = attributes
            .map(|(name, value)| format!("attribute={}:{}", encoded(name), encoded(value)));
        let query: Vec<String> = domain.into_iter().chain(attributes).collect();
        quoted(&format!("{url}/v1/state?{}", query.join("&")))
    }

    fn body(&self) -> String {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let pair = |(name, value): &(String, String)| format!("{}: {}", text(name), text(value));
        let attributes = self.attributes.iter().map(pair).collect::<Vec<_>>().join(", ");
        let domain = match &*self.domain {
            "" => String::new(),
            domain => format!("\"domain\": {}, ", text(domain)),
        };
        format!("{{{domain}\"attributes\": {{{attributes}}}}}")
    }
}

/// Percent-encodes a text for a query string.
fn encoded(text: &str) -> impl std::fmt::Display {
    const ESCAPED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    utf8_percent_encode(text, ESCAPED)
}

/// Quotes a text for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns true if the limits support a check. Concurrency limits do not: their permits are acquired and released.
fn can_check(limits: &[Limit]) -> bool {
    let mut algorithms = limits.iter().map(|limit| limit.algorithm());
    !limits.is_empty() && algorithms.all(|algorithm| !algorithm.holds_permits())
}

/// Returns a value that meets a condition, or `None` if the attribute must be absent.
fn value_for(name: &str, condition: &Condition) -> Option<String> {
    match condition {
        Condition::OneOf(values) => values.first().cloned(),
        Condition::Glob(glob) => {
            let text = glob.to_string().replace("**", "x");
            Some(text.replace(['*', '?'], "x"))
        }
        Condition::Cidr(networks) => {
            networks.first().and_then(|network| Some(network.hosts().next()?.to_string()))
        }
        Condition::Absent => None,
        _ => Some(typical_value(name)),
    }
}

/// Returns a typical value of an attribute without a condition.
fn typical_value(name: &str) -> String {
    let value = match name {
        "path" => "/",
        "method" => "GET",
        "host" => "example.com",
        _ if name == "ip" || name.ends_with("_ip") || name.ends_with("address") => "203.0.113.7",
        _ => "alice",
    };
    value.to_owned()
}

#[cfg(test)]
mod tests {
    use pacegate_server::{Environment, Settings, read_config as read};

    use super::*;

    fn sample_of(text: &str) -> Option<String> {
        let settings: Settings = read(text, "sample.yaml", &Environment::of(|_| None)).unwrap();
        Sample::of(&settings.policies).map(|sample| quoted(&sample.body()))
    }

    #[test]
    fn meets_the_conditions_of_a_policy_and_has_its_key() {
        let text = "policies:
  - { name: login, match: { path: /login, method: [POST, PUT] }, per: [ip], limit: 5/minute }";
        let expected =
            r#"'{"attributes": {"path": "/login", "method": "POST", "ip": "203.0.113.7"}}'"#;
        assert_eq!(sample_of(text).as_deref(), Some(expected));
    }

    #[test]
    fn fills_in_patterns_networks_and_domains() {
        let text = "policies:
  - name: edge
    domain: shop
    match: { path: '/v?/*/items/**', ip: { cidr: 10.1.0.0/16 } }
    per: [user]
    limit: 5/minute";
        let attributes = r#"{"path": "/vx/x/items/x", "ip": "10.1.0.1", "user": "alice"}"#;
        let expected = format!(r#"'{{"domain": "shop", "attributes": {attributes}}}'"#);
        assert_eq!(sample_of(text), Some(expected));
    }

    #[test]
    fn prefers_a_policy_that_denies() {
        let text = "policies:
  - { name: trial, per: [user], limit: 5/minute, mode: shadow }
  - { name: busy, per: [job], limit: 5/minute concurrency }
  - { name: real, per: [key], limit: 5/minute }";
        assert_eq!(sample_of(text).as_deref(), Some(r#"'{"attributes": {"key": "alice"}}'"#));
    }

    #[test]
    fn attributes_are_quoted_for_the_shell() {
        let text = "policies: [{ name: quoted, match: { user: \"o'neil\" }, limit: 5/minute }]";
        assert_eq!(sample_of(text).as_deref(), Some(r#"'{"attributes": {"user": "o'\''neil"}}'"#));
    }

    #[test]
    fn a_peek_has_the_same_attributes() {
        let text = "policies: [{ name: a, domain: a b, per: [user], match: { path: /x }, limit: 5/minute }]";
        let settings: Settings = read(text, "sample.yaml", &Environment::of(|_| None)).unwrap();
        let sample = Sample::of(&settings.policies).unwrap();
        let expected = "'http://h/v1/state?domain=a%20b&attribute=path:/x&attribute=user:alice'";
        assert_eq!(sample.peek("http://h"), expected);
    }

    #[test]
    fn there_is_no_sample_if_no_policy_limits() {
        assert_eq!(sample_of("policies: []"), None);
    }
}
