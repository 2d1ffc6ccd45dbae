//! Requests that come from another system: forward authentication by a proxy, and the check of RLaaS.

use std::{borrow::Cow, sync::Arc};

use axum::extract::{Query, Request as Asking, State};
use http::{HeaderMap, StatusCode, header, request::Parts};
use pacegate::{Decision, Request};
use pacegate_http::{
    headers::reset_seconds,
    resolve::{plain_address, plain_host},
};
use pacegate_redis::Layout;
use smallvec::SmallVec;

use super::{
    Answer, Problem, Shared,
    answer::{Decided, key_of, uncached},
    model::SeedAnswer,
};
use crate::{
    config::{Bounds, Scope},
    gate::State as Gated,
    stand_in,
};

/// `/v1/auth` by any method: decides about the request that a proxy describes in headers.
pub(super) async fn auth(shared: &Shared, head: &Parts) -> Result<Answer, Problem> {
    let options = Options::from_query(head)?;
    let revision = shared.gate.revision();
    let bounds = &revision.settings.bounds;
    revision.access_to(&head.headers, Scope::Check, &options.domain)?;
    let attributes = attributes(&head.headers, options.dialect, bounds)?;
    let mut request = Request::new().in_domain(&options.domain);
    for (name, value) in &attributes {
        request = request.with(name, &**value);
    }
    let now = shared.now();
    let decision = stand_in::check(&revision.engine, &request, bounds.key_bytes).await?;
    let decided = Decided { decision, headers: revision.settings.headers, now };
    let status = match decision.is_allowed() {
        true => StatusCode::OK,
        false => options.dialect.denied(),
    };
    if revision.settings.problem_details && !decision.is_allowed() {
        let key = key_of(&revision, &decision, &request);
        return Ok(uncached(decided.problem(status, &key, revision.number)));
    }
    Ok(uncached(decided.empty_answer(status)))
}

/// `GET /check?userId=alice`, as RLaaS answers it: in text, or in JSON for clients that accept it.
pub(super) async fn seed(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Answer, Problem> {
    let Query(pairs) = query(asking.uri())?;
    let user = pairs.iter().find(|(name, _)| name == "userId");
    let (_, user) = user.ok_or_else(|| Problem::request("say who, as in /check?userId=alice"))?;
    let revision = shared.gate.revision();
    revision.access_to(asking.headers(), Scope::Check, "")?;
    let request = Request::new().with("userId", user);
    let now = shared.now();
    let settings = &revision.settings;
    let decision = match settings.layout == Layout::native() {
        true => stand_in::check(&revision.engine, &request, settings.bounds.key_bytes).await?,
        // The key is shared with RLaaS, so it stays as it is. The bound on headers is the bound on its length.
        false => revision.engine.check(&request).await?,
    };
    let decided = Decided { decision, headers: settings.headers, now };
    if !prefers_json(asking.headers()) {
        let body = seed_text(&decision);
        return Ok(uncached(decided.text_answer(|out| out.extend_from_slice(body.as_bytes()))));
    }
    let answer = SeedAnswer {
        allowed: decision.is_allowed(),
        current_count: current_count(&shared, &decision, user).await,
        ttl: reset_seconds(&decision),
    };
    let body = serde_json::to_vec(&answer);
    let body = body.map_err(|error| Problem::unavailable(error.to_string()))?;
    Ok(uncached(decided.answer_with(|out| out.extend_from_slice(&body))))
}

/// What a user has used. After a denial that is the limit, or if denied requests are counted, as much as the counter
/// holds.
async fn current_count(shared: &Shared, decision: &Decision, user: &str) -> u64 {
    let Some(limit) = decision.limit() else { return 0 };
    let used = limit.capacity().saturating_sub(decision.remaining());
    let counts_denied = shared.gate.revision().settings.count_denied;
    match shared.gate.state() {
        Gated::Redis(store) if counts_denied && !decision.is_allowed() => {
            let count = store.count(user, limit).await;
            count.map_or(used, |count| count.max(used))
        }
        _ => used,
    }
}

/// The body of RLaaS. A limit of 0 is never over, so a client is sent away for a whole window each time.
fn seed_text(decision: &Decision) -> String {
    if decision.is_allowed() {
        return "User is allowed".to_owned();
    }
    let window = || decision.limit().map_or(1, |limit| limit.period().as_secs().max(1));
    let seconds = decision.retry_after_secs().unwrap_or_else(window);
    format!("User is not allowed...Try after {seconds} seconds.")
}

/// Whether a client names JSON in its `Accept`, and likes it no less than text.
fn prefers_json(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut best = [0_u32; 2];
    for range in ranges.flat_map(|list| list.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(1_000, thousandths);
        let kind = match &*name {
            "application/json" | "application/*" => 0,
            "text/plain" | "text/*" => 1,
            _ => continue,
        };
        best[kind] = best[kind].max(quality);
    }
    best[0] > 0 && best[0] >= best[1]
}

/// A quality such as `0.5`, of at most three digits. Anything else counts as 0.
fn thousandths(text: &str) -> u32 {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    match (whole, part.len() <= 3, format!("{part:0<3}").parse()) {
        ("1", true, Ok(0)) => 1_000,
        ("0", true, Ok(part)) => part,
        _ => 0,
    }
}

/// Whose headers are believed. Only one kind at a time: a client could send the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// nginx' `auth_request`: `X-Original-URI`, `X-Original-Method`, `X-Real-IP`. It makes a 500 of a 429.
    Original,
    /// Traefik, Caddy: `X-Forwarded-Uri`, `-Method`, `-Host`, `-For`.
    Forwarded,
}

/// What the proxy's configuration says in the query.
struct Options {
    domain: String,
    dialect: Dialect,
}

/// Names and values.
type Attributes<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, [u8]>); 8]>;

/// Headers that begin like this are attributes.
const OWN: &str = "x-pacegate-";

/// Attributes that only the proxy's own headers say.
const RESERVED: [&str; 4] = [Request::PATH, "method", "host", "ip"];

impl Options {
    fn from_query(head: &Parts) -> Result<Self, Problem> {
        let mut options = Self { domain: String::new(), dialect: Dialect::Original };
        let Query(pairs) = query(&head.uri)?;
        for (name, value) in pairs {
            match (&*name, &*value) {
                ("domain", _) => options.domain = value,
                ("deny", "403") => options.dialect = Dialect::Original,
                ("deny", "429") => options.dialect = Dialect::Forwarded,
                ("deny", _) => {
                    let detail = "`deny` is 403 for nginx, or 429 for Traefik and Caddy";
                    return Err(Problem::request(detail));
                }
                (other, _) => {
                    let detail =
                        format!("unknown parameter `{other}`, expected `domain` or `deny`");
                    return Err(Problem::request(detail));
                }
            }
        }
        Ok(options)
    }
}

fn query(uri: &http::Uri) -> Result<Query<Vec<(String, String)>>, Problem> {
    Query::try_from_uri(uri).map_err(|error| Problem::request(error.body_text()))
}

impl Dialect {
    fn denied(self) -> StatusCode {
        match self {
            Self::Original => StatusCode::FORBIDDEN,
            Self::Forwarded => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The headers with the path, the method, the host and the address.
    fn names(self) -> [&'static str; 4] {
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
    dialect: Dialect,
    bounds: &Bounds,
) -> Result<Attributes<'a>, Problem> {
    let [uri, method, host, address] = dialect.names();
    let value = |name| headers.get(name).map(|value| value.as_bytes());
    let mut attributes = Attributes::new();
    let mut add = |name: &'static str, value: Option<Cow<'a, [u8]>>| {
        attributes.extend(value.map(|value| (Cow::Borrowed(name), value)));
    };
    add(Request::PATH, value(uri).map(|uri| Cow::Borrowed(path(uri))));
    add("method", value(method).map(Cow::Borrowed));
    add("host", value(host).map(plain_host));
    add("ip", ip(headers, address).map(|ip| Cow::Owned(ip.into_bytes())));
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(OWN) else { continue };
        let is_known = attributes.iter().any(|(other, _)| other == name);
        if !is_known && !name.is_empty() && !RESERVED.contains(&name) {
            attributes.push((Cow::Borrowed(name), Cow::Borrowed(value.as_bytes())));
        }
    }
    let most = bounds.attributes;
    if attributes.len() > most {
        return Err(Problem::bounds(format!("a request has at most {most} attributes")));
    }
    Ok(attributes)
}

/// The path of a URI, as it was sent: each policy normalizes it as it wants.
fn path(uri: &[u8]) -> &[u8] {
    let end = uri.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &uri[..end.unwrap_or(uri.len())]
}

/// The last address in the last header of this name: the one that the proxy itself has seen.
fn ip(headers: &HeaderMap, name: &str) -> Option<String> {
    let last = headers.get_all(name).iter().next_back()?.as_bytes();
    plain_address(last.rsplit(|&byte| byte == b',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_for_clients_that_name_it() {
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
    fn the_last_address_is_the_proxys() {
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
