//! Requests that a page of another site can make a browser send. They are rejected before anything is read of them.
//!
//! Without API keys, being able to connect is the only permission, and every page in a browser on this machine can
//! connect. Two rules keep such pages out. A request must name a host that this server is known by, so a page cannot
//! point its own name at a loopback address (DNS rebinding). And a request that a browser marks as sent by another
//! origin is rejected (`Origin`, `Sec-Fetch-Site`).

use std::net::IpAddr;

use http::{HeaderMap, Request, header, uri::Authority};

use super::Problem;
use crate::{
    config::{Bind, Settings},
    listeners::ListenerId,
};

/// Paths that hold no data and change nothing. Load balancers ask for them by any name, or by none.
const HEALTH: [&str; 3] = ["/healthz", "/readyz", "/healthcheck"];

/// The page itself holds no data, and links on other sites may lead to it.
const PAGE: &str = "/";

/// Headers by which a proxy describes a request at `/v1/auth`. Pages of other sites cannot send them.
const PROXIED: [&str; 8] = [
    "x-original-uri",
    "x-original-method",
    "x-original-host",
    "x-real-ip",
    "x-forwarded-uri",
    "x-forwarded-method",
    "x-forwarded-host",
    "x-forwarded-for",
];

/// Rejects a request without one valid host, for an unknown host, or from a page of another site.
pub(super) fn check<B>(settings: &Settings, request: &Request<B>) -> Result<(), Problem> {
    let path = request.uri().path();
    let is_health = HEALTH.contains(&path);
    let host = match named_host(request)? {
        Some(host) => host,
        None if is_health => return Ok(()),
        None => return Err(Problem::bad_host("the request has no `Host`")),
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
        return Err(Problem::host());
    }
    let headers = request.headers();
    let is_proxied = path == "/v1/auth" && PROXIED.iter().any(|name| headers.contains_key(*name));
    if is_open && path != PAGE && !is_proxied && is_cross_site(headers, &host) {
        return Err(Problem::cross_site());
    }
    Ok(())
}

/// Returns the host that a request names: its `Host`, `:authority`, or both if they agree.
fn named_host<B>(request: &Request<B>) -> Result<Option<Authority>, Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, other) = (hosts.next(), hosts.next());
    if other.is_some() {
        return Err(Problem::bad_host("the request has more than one `Host`"));
    }
    let host = host.map(|host| Authority::try_from(host.as_bytes())).transpose();
    let host = host.map_err(|_| Problem::bad_host("the `Host` is not a host with a port"))?;
    match (host, request.uri().authority()) {
        (Some(host), Some(target)) if host != *target => {
            Err(Problem::bad_host("`Host` is another host than that of the request's target"))
        }
        (Some(host), _) => Ok(Some(host)),
        (None, target) => Ok(target.cloned()),
    }
}

/// Whether this server is known by a host: `localhost`, an address that leads here, or a configured name.
fn is_known(host: &Authority, is_loopback: bool, hosts: &[String]) -> bool {
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_local = match name.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // A browser on this machine reaches the loopback by the unspecified address, too: no program needs it.
        Ok(ip) if is_loopback => ip.is_loopback(),
        Ok(ip) => !ip.is_unspecified(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    };
    is_local || hosts.contains(&name)
}

/// Whether a browser says that a page of another origin sends this.
fn is_cross_site(headers: &HeaderMap, host: &Authority) -> bool {
    let is_own_site = |site: &[u8]| matches!(site, b"same-origin" | b"none");
    let mut sites = headers.get_all("sec-fetch-site").iter();
    let mut origins = headers.get_all(header::ORIGIN).iter();
    sites.any(|site| !is_own_site(site.as_bytes()))
        || origins.any(|origin| !is_own_origin(origin.as_bytes(), host))
}

/// Whether an `Origin` is that of this host. Ports may be left out where they are those of the scheme.
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
