//! Pages on the other ports of envoyproxy/ratelimit: metrics on `PROMETHEUS_ADDR`, and the rules and counters on the
//! debug port.

use std::{convert::Infallible, fmt::Write as _, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{counters, prometheus};
use crate::{
    active_config::ActiveConfig,
    envoy::proto::Unit,
    http::names_local_host,
    service::{Drain, Peer, Protocol},
};

/// The pages of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageSet {
    /// Metrics at this path.
    Prometheus(String),
    /// `/rlconfig` and `/stats`.
    Debug,
}

/// Serves pages, one request per connection. They need no API key, and change nothing.
#[derive(Debug)]
pub(crate) struct Pages {
    active: Arc<ActiveConfig>,
    set: PageSet,
    /// True if only this machine can connect. Then the host must be known, because pages in a browser can connect too.
    is_loopback: bool,
}

const INDEX: &str = "/rlconfig: the rules\n/stats: the counters\n";

impl Pages {
    pub(crate) fn new(active: Arc<ActiveConfig>, set: PageSet) -> Self {
        Self { active, set, is_loopback: false }
    }

    /// Sets the address on which the pages are served.
    pub(crate) fn on(self, address: SocketAddr) -> Self {
        Self { is_loopback: address.ip().to_canonical().is_loopback(), ..self }
    }

    /// Returns a name for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self.set {
            PageSet::Prometheus(_) => "metrics for Prometheus",
            PageSet::Debug => "the debug port",
        }
    }

    fn page(&self, path: &str) -> Option<String> {
        match (&self.set, path) {
            (PageSet::Prometheus(own), path) if own == path => Some(prometheus::text(&self.active)),
            (PageSet::Debug, "/rlconfig") => Some(rules(&self.active)),
            (PageSet::Debug, "/stats") => {
                let counters = counters(&self.active).into_iter();
                Some(counters.map(|(name, count)| format!("{name}: {count}\n")).collect())
            }
            (PageSet::Debug, "/") => Some(INDEX.to_owned()),
            _ => None,
        }
    }

    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let hosts = &self.active.revision().settings.hosts;
        let (status, page) = if self.is_loopback && !names_local_host(request, hosts) {
            (StatusCode::FORBIDDEN, "the request is for another host\n".to_owned())
        } else {
            match self.page(request.uri().path()) {
                Some(page) => (StatusCode::OK, page),
                None => (StatusCode::NOT_FOUND, String::new()),
            }
        };
        let mut response = Response::new(Full::from(page));
        *response.status_mut() = status;
        let content_type = HeaderValue::from_static(prometheus::CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

/// Returns a line for each limit, in the form of envoyproxy/ratelimit.
fn rules(active: &ActiveConfig) -> String {
    let mut page = String::new();
    for rule in active.revision().settings.written_rules() {
        let mut name = rule.domain.clone();
        for (key, value) in &rule.path {
            name.extend([".", key]);
            name.extend(value.iter().flat_map(|value| ["_", value]));
        }
        // A rule without limits is unlimited.
        let limits =
            rule.limits.iter().map(|limit| (Unit::nearest(limit.period()), limit.amount()));
        let unlimited = rule.limits.is_empty().then_some((Unit::Unknown, 0));
        for (unit, amount) in limits.chain(unlimited) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                page,
                "{name}: unit={} requests_per_unit={amount}, shadow_mode: {}, quota_mode: {}",
                unit.word().to_ascii_uppercase(),
                rule.shadow,
                rule.quota
            );
        }
    }
    page
}

impl Protocol for Pages {
    async fn serve<I>(&self, io: I, _: Peer, drain: Drain)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let bounds = self.active.revision().settings.bounds;
        let service = service_fn(|request| {
            let response = self.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(bounds.read_timeout).keep_alive(false);
        let connection = builder.serve_connection(TokioIo::new(io), service);
        tokio::select! {
            // A connection that fails has been answered as far as possible.
            _ = timeout(bounds.read_timeout + bounds.write_timeout, connection) => {}
            () = drain.grace_over() => {}
        }
    }

    fn active(&self) -> &ActiveConfig {
        &self.active
    }
}
