//! Rejects requests that pages of other sites make a browser send, before their body is read.
//!
//! Without API keys, every client that can connect has access, including every page in a browser on this machine. Two
//! rules keep such pages out. A request must name a known host of this server, so that a page cannot point its own name
//! at a loopback address (DNS rebinding). And requests that a browser marks as sent by another origin are rejected
//! (`Origin`, `Sec-Fetch-Site`).

use std::net::IpAddr;

use http::{HeaderMap, Request, header, uri::Authority};

use super::{ProblemDetails, proxy::ForwardedBy};
use crate::{
    config::{Bind, Settings},
    listeners::ListenerId,
};

/// Paths without data or effects. Load balancers request them with any host, or none.
const HEALTH: [&str; 3] = ["/healthz", "/readyz", "/healthcheck"];

/// The page itself, which has no data. Links on other sites may lead to it.
const PAGE: &str = "/";

/// Rejects a request without one valid host, for an unknown host, or from a page of another site.
pub(super) fn check<B>(settings: &Settings, request: &Request<B>) -> Result<(), ProblemDetails> {
    let path = request.uri().path();
    let is_health = HEALTH.contains(&path);
    let host = match named_host(request)? {
        Some(host) => host,
        None if is_health => return Ok(()),
        None => return Err(ProblemDetails::bad_host("the request has no `Host`")),
    };
    if is_health {
        return Ok(());
    }
    let is_open = settings.security.credentials.is_empty();
    let is_loopback = match settings.listen[ListenerId::Http] {
        Bind::At(address) => address.ip().to_canonical().is_loopback(),
        Bind::Off => true,
    };
    let is_checked = (is_open && is_loopback) || !settings.hosts.is_empty();
    if is_checked && !is_known(&host, is_loopback, &settings.hosts) {
        return Err(ProblemDetails::host());
    }
    let headers = request.headers();
    // Pages of other sites cannot send the headers of a proxy.
    let mut proxies = [ForwardedBy::Original, ForwardedBy::Forwarded].into_iter();
    let is_proxied = path == "/v1/auth"
        && proxies.any(|proxy| proxy.names().iter().any(|name| headers.contains_key(*name)));
    if is_open && path != PAGE && !is_proxied && is_cross_site(headers, &host) {
        return Err(ProblemDetails::cross_site());
    }
    Ok(())
}

/// Returns whether a request to a loopback address names a known host, or none, which no browser does.
pub(crate) fn names_local_host<B>(request: &Request<B>, hosts: &[String]) -> bool {
    let named = named_host(request);
    named.is_ok_and(|host| host.is_none_or(|host| is_known(&host, true, hosts)))
}

/// Returns the host that a request names: its `Host`, `:authority`, or both if they agree.
fn named_host<B>(request: &Request<B>) -> Result<Option<Authority>, ProblemDetails> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, other) = (hosts.next(), hosts.next());
    if other.is_some() {
        return Err(ProblemDetails::bad_host("the request has more than one `Host`"));
    }
    let host = host.map(|host| Authority::try_from(host.as_bytes())).transpose();
    let host = host.map_err(|_| {
        ProblemDetails::bad_host("invalid `Host`: expected a host and an optional port")
    })?;
    match (host, request.uri().authority()) {
        (Some(host), Some(target)) if host != *target => {
            Err(ProblemDetails::bad_host("`Host` differs from the host of the request target"))
        }
        (Some(host), _) => Ok(Some(host)),
        (None, target) => Ok(target.cloned()),
    }
}

/// Returns whether a host is a known name of this server: `localhost`, one of its addresses, or a configured name.
fn is_known(host: &Authority, is_loopback: bool, hosts: &[String]) -> bool {
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_local = match name.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Browsers on this machine also reach the loopback by the unspecified address, which no client needs.
        Ok(ip) if is_loopback => ip.is_loopback(),
        Ok(ip) => !ip.is_unspecified(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    };
    is_local || hosts.contains(&name)
}

/// Returns whether a browser marked the request as sent by a page of another origin.
fn is_cross_site(headers: &HeaderMap, host: &Authority) -> bool {
    let is_own_site = |site: &[u8]| matches!(site, b"same-origin" | b"none");
    let mut sites = headers.get_all("sec-fetch-site").iter();
    let mut origins = headers.get_all(header::ORIGIN).iter();
    sites.any(|site| !is_own_site(site.as_bytes()))
        || origins.any(|origin| !is_own_origin(origin.as_bytes(), host))
}

/// Returns whether an `Origin` is this host. The default port of the scheme may be omitted.
fn is_own_origin(origin: &[u8], host: &Authority) -> bool {
    let (rest, port) = match (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://")) {
        (Some(rest), _) => (rest, 80),
        (_, Some(rest)) => (rest, 443),
        _ => return false,
    };
    let Ok(origin) = Authority::try_from(rest) else { return false };
    let port_of = |authority: &Authority| authority.port_u16().unwrap_or(port);
    origin.host().eq_ignore_ascii_case(host.host()) && port_of(&origin) == port_of(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &'static str) -> Authority {
        Authority::from_static(text)
    }

    #[test]
    fn hosts_are_known_by_name_and_address() {
        let hosts = ["limits.example".to_owned()];
        for (name, on_loopback, elsewhere) in [
            ("localhost", true, true),
            ("LOCALHOST:8080", true, true),
            ("localhost.", true, true),
            ("a.localhost", true, true),
            ("127.0.0.1:80", true, true),
            ("127.8.8.8", true, true),
            ("[::1]:8080", true, true),
            ("[::ffff:127.0.0.1]", true, true),
            ("Limits.Example:443", true, true),
            ("10.0.0.7", false, true),
            ("[2001:db8::1]", false, true),
            ("0.0.0.0:8080", false, false),
            ("[::]:8080", false, false),
            ("evil.example", false, false),
            ("127.0.0.1.evil.example:8080", false, false),
            ("localhost.evil.example", false, false),
            ("2130706433", false, false),
            ("0", false, false),
        ] {
            let known = [true, false].map(|is_loopback| is_known(&host(name), is_loopback, &hosts));
            assert_eq!(known, [on_loopback, elsewhere], "{name}");
        }
    }

    #[test]
    fn a_page_cannot_reach_a_loopback_address_by_its_own_name() {
        for (hosts, is_local) in [
            (&["127.0.0.1:6070"][..], true),
            (&["limits.example"], true),
            (&[], true),
            (&["evil.example:6070"], false),
            (&["127.0.0.1", "127.0.0.1"], false),
            (&["a b"], false),
        ] {
            let request =
                hosts.iter().fold(Request::get("/stats"), |it, host| it.header("host", *host));
            let known = ["limits.example".to_owned()];
            assert_eq!(names_local_host(&request.body(()).unwrap(), &known), is_local, "{hosts:?}");
        }
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (origin, name, is_own) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://LOCALHOST:8080", "localhost:8080", true),
            ("http://localhost", "localhost:80", true),
            ("https://limits.example", "limits.example", true),
            ("https://limits.example", "limits.example:443", true),
            ("https://limits.example", "limits.example:80", false),
            ("http://localhost:3000", "localhost:8080", false),
            ("http://127.0.0.1:8080", "localhost:8080", false),
            ("http://evil.example", "127.0.0.1:8080", false),
            ("null", "127.0.0.1:8080", false),
            ("", "127.0.0.1:8080", false),
            ("file://", "127.0.0.1:8080", false),
            ("http://", "127.0.0.1:8080", false),
        ] {
            assert_eq!(is_own_origin(origin.as_bytes(), &host(name)), is_own, "{origin} {name}");
        }
    }
}
