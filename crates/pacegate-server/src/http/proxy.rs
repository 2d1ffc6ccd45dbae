//! Endpoints for other systems: forward authentication for proxies, and the check of RLaaS.

use std::borrow::Cow;

use axum::extract::Request as HttpRequest;
use http::{HeaderMap, StatusCode, header, request::Parts};
use pacegate::{Decision, Request};
use pacegate_http::{
    headers::reset_seconds,
    resolve::{plain_address, plain_host},
};
use pacegate_redis::Layout;
use smallvec::SmallVec;

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    bodies::SeedResponse,
    request::parse_query,
    response::{DecisionResponse, key_of, no_store},
};
use crate::{
    active_config::State as Gated,
    config::{Bounds, Scope},
    long_key_digest,
};

/// `/v1/auth` with any method: checks the request that a proxy describes in headers.
pub(super) async fn auth(shared: &Shared, head: &Parts) -> HttpResult {
    let options = AuthOptions::from_query(head)?;
    let revision = shared.active.revision();
    let bounds = &revision.settings.bounds;
    revision.access_to(&head.headers, Scope::Check, &options.domain)?;
    let attributes = attributes(&head.headers, options.proxy, bounds)?;
    let mut request = Request::new().in_domain(&options.domain);
    for (name, value) in &attributes {
        request = request.with(name, &**value);
    }
    let now = shared.now();
    let decision = long_key_digest::check(&revision.engine, &request, bounds.key_bytes).await?;
    let response = DecisionResponse { decision, headers: revision.settings.headers, now };
    let status = match decision.is_allowed() {
        true => StatusCode::OK,
        false => options.proxy.denied(),
    };
    if revision.settings.problem_details && !decision.is_allowed() {
        let key = key_of(&revision, &decision, &request);
        return response.problem(status, &key, revision.number).map(no_store);
    }
    Ok(no_store(response.empty(status)))
}

/// `GET /check?userId=alice`, with the responses of RLaaS: text, or JSON for clients that accept it.
pub(super) async fn seed(shared: Context, http_request: HttpRequest) -> HttpResult {
    let pairs = parse_query(http_request.uri())?;
    let user = pairs.iter().find(|(name, _)| name == "userId");
    let (_, user) = user.ok_or_else(|| {
        ProblemDetails::request("missing parameter `userId`, as in /check?userId=alice")
    })?;
    let revision = shared.active.revision();
    revision.access_to(http_request.headers(), Scope::Check, "")?;
    let request = Request::new().with("userId", user);
    let now = shared.now();
    let settings = &revision.settings;
    let decision = match settings.layout == Layout::native() {
        true => {
            long_key_digest::check(&revision.engine, &request, settings.bounds.key_bytes).await?
        }
        // RLaaS shares the key, so it must not be replaced by a digest. The bound on headers limits its length.
        false => revision.engine.check(&request).await?,
    };
    let response = DecisionResponse { decision, headers: settings.headers, now };
    if !prefers_json(http_request.headers()) {
        return Ok(no_store(response.text(seed_text(&decision))));
    }
    let body = SeedResponse {
        allowed: decision.is_allowed(),
        current_count: current_count(&shared, &decision, user).await,
        ttl: reset_seconds(&decision),
    };
    response.json(&body).map(no_store)
}

/// Returns the units that a user has used. If denied requests are counted, reads the counter after a denial.
async fn current_count(shared: &Shared, decision: &Decision, user: &str) -> u64 {
    let Some(limit) = decision.limit() else { return 0 };
    let used = limit.capacity().saturating_sub(decision.remaining());
    let counts_denied = shared.active.revision().settings.count_denied;
    match &shared.active.state {
        Gated::Redis(store) if counts_denied && !decision.is_allowed() => {
            let count = store.count(user, limit).await;
            count.map_or(used, |count| count.max(used))
        }
        _ => used,
    }
}

/// Returns the text of RLaaS. With a limit of 0, which never admits, the retry time is one window.
fn seed_text(decision: &Decision) -> String {
    if decision.is_allowed() {
        return "User is allowed".to_owned();
    }
    let window = || decision.limit().map_or(1, |limit| limit.period().as_secs().max(1));
    let seconds = decision.retry_after_secs().unwrap_or_else(window);
    format!("User is not allowed...Try after {seconds} seconds.")
}

/// Returns whether `Accept` names JSON with at least the quality of text.
fn prefers_json(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut best = [0.0_f32; 2];
    for range in ranges.flat_map(|list| list.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = match parts.find_map(|part| part.strip_prefix("q=")) {
            None => 1.0,
            Some(text) => text.parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
        };
        let kind = match &*name {
            "application/json" | "application/*" => 0,
            "text/plain" | "text/*" => 1,
            _ => continue,
        };
        best[kind] = best[kind].max(quality);
    }
    best[0] > 0.0 && best[0] >= best[1]
}

/// The proxy whose headers are trusted. The headers of the other kind are ignored: clients could send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardedBy {
    /// nginx `auth_request`: `X-Original-URI`, `X-Original-Method`, `X-Real-IP`. nginx turns a 429 into a 500.
    Original,
    /// Traefik, Caddy: `X-Forwarded-Uri`, `-Method`, `-Host`, `-For`.
    Forwarded,
}

/// Query parameters, which the configuration of the proxy sets.
struct AuthOptions {
    domain: String,
    proxy: ForwardedBy,
}

type HeaderAttributes<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 8]>;

/// Prefix of headers that become attributes.
const ATTRIBUTE_PREFIX: &str = "x-pacegate-";

/// Attributes that only the headers of the proxy set.
const RESERVED: [&str; 4] = [Request::PATH, "method", "host", "ip"];

impl AuthOptions {
    fn from_query(head: &Parts) -> Result<Self, ProblemDetails> {
        let mut options = Self { domain: String::new(), proxy: ForwardedBy::Original };
        for (name, value) in parse_query(&head.uri)? {
            match (&*name, &*value) {
                ("domain", _) => options.domain = value,
                ("deny", "403") => options.proxy = ForwardedBy::Original,
                ("deny", "429") => options.proxy = ForwardedBy::Forwarded,
                ("deny", _) => {
                    let detail = "invalid `deny`: expected 403 (nginx) or 429 (Traefik, Caddy)";
                    return Err(ProblemDetails::request(detail));
                }
                (other, _) => {
                    let detail =
                        format!("unknown parameter `{other}`, expected `domain` or `deny`");
                    return Err(ProblemDetails::request(detail));
                }
            }
        }
        Ok(options)
    }
}

impl ForwardedBy {
    fn denied(self) -> StatusCode {
        match self {
            Self::Original => StatusCode::FORBIDDEN,
            Self::Forwarded => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns the names of the headers with the path, the method, the host and the address.
    pub(super) fn names(self) -> [&'static str; 4] {
        match self {
            Self::Original => {
                ["x-original-uri", "x-original-method", "x-original-host", "x-real-ip"]
            }
            Self::Forwarded => {
                ["x-forwarded-uri", "x-forwarded-method", "x-forwarded-host", "x-forwarded-for"]
            }
        }
    }
}

fn attributes<'a>(
    headers: &'a HeaderMap,
    proxy: ForwardedBy,
    bounds: &Bounds,
) -> Result<HeaderAttributes<'a>, ProblemDetails> {
    let [uri, method, host, address] = proxy.names();
    let value = |name| headers.get(name).map(|value| value.as_bytes());
    let mut attributes = HeaderAttributes::new();
    let mut add = |name: &'static str, value: Option<Cow<'a, [u8]>>| {
        attributes.extend(value.map(|value| (Cow::Borrowed(name), value)));
    };
    add(Request::PATH, value(uri).map(|uri| Cow::Borrowed(path(uri))));
    add("method", value(method).map(Cow::Borrowed));
    add("host", value(host).map(plain_host));
    add("ip", ip(headers, address).map(|ip| Cow::Owned(ip.into_bytes())));
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(ATTRIBUTE_PREFIX) else { continue };
        let is_known = attributes.iter().any(|(other, _)| other == name);
        if !is_known && !name.is_empty() && !RESERVED.contains(&name) {
            attributes.push((Cow::Borrowed(name), Cow::Borrowed(value.as_bytes())));
        }
    }
    match attributes.len() > bounds.attributes {
        true => Err(ProblemDetails::too_many_attributes(bounds)),
        false => Ok(attributes),
    }
}

/// Returns the path of a URI unchanged: each policy normalizes it by its own settings.
fn path(uri: &[u8]) -> &[u8] {
    let end = uri.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &uri[..end.unwrap_or(uri.len())]
}

/// Returns the last address of the last header with this name, which the proxy itself appended.
fn ip(headers: &HeaderMap, name: &str) -> Option<String> {
    let last = headers.get_all(name).iter().next_back()?.as_bytes();
    plain_address(last.rsplit(|&byte| byte == b',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_name_json_get_json() {
        for (accept, json) in [
            ("application/json", true),
            ("Application/JSON; q=0.5", true),
            ("application/json, text/plain, */*", true),
            ("application/*", true),
            ("text/plain;q=0.4, application/json;q=0.5", true),
            ("text/plain, application/json;q=0.9", false),
            ("application/json;q=0", false),
            ("application/json;q=x", false),
            ("text/html, */*;q=0.8", false),
            ("*/*", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(prefers_json(&headers), json, "{accept}");
        }
        assert!(!prefers_json(&HeaderMap::new()));
    }

    #[test]
    fn the_last_address_wins() {
        for (lines, expected) in [
            (&["10.0.0.1, 203.0.113.7"][..], Some("203.0.113.7")),
            (&["6.6.6.6", "203.0.113.7"], Some("203.0.113.7")),
            (&["::ffff:203.0.113.7"], Some("203.0.113.7")),
            (&["203.0.113.7:5555"], Some("203.0.113.7")),
            (&["64:ff9b::203.0.113.7"], Some("203.0.113.7")),
            (&["2001:DB8::0:1"], Some("2001:db8::")),
            (&["[2001:db8:1:2:3::1]:443"], Some("2001:db8:1:2::")),
            (&["203.0.113.7, nonsense"], None),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            let found = ip(&headers, "x-forwarded-for");
            assert_eq!(found.as_deref(), expected, "{lines:?}");
        }
    }
}
