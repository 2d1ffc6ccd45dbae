//! The table of listeners.
//!
//! To add a listener, write the module that implements [`Protocol`](crate::service::Protocol), and add an entry here,
//! with its field in the configuration, and its option in the command `serve`.

use std::{
    net::SocketAddr,
    ops::{Index, IndexMut},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    active_config::ActiveConfig,
    config::{At, Bind, Settings},
    envoy::{self, Grpc},
    http::{self, HttpService},
    metrics::{ListenerMetrics, Metrics},
    reload::Reloader,
    resp::{self, RespService},
    server::{Accepting, BoundListener},
};

/// A listener of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenerId {
    /// HTTP: checks, administration, metrics, health.
    Http,
    /// gRPC: Envoy's rate limit service.
    Grpc,
    /// The protocol of Redis.
    Resp,
}

/// The addresses of the listeners: `HOST:PORT`, with port 0 for a free port, or `off`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Listen")]
pub(crate) struct ListenSection {
    /// HTTP: checks, administration, metrics, health.
    #[schemars(extend("default" = default_address(ListenerId::Http)))]
    http: Option<At<String>>,

    /// gRPC: Envoy's rate limit service.
    #[schemars(extend("default" = default_address(ListenerId::Grpc)))]
    grpc: Option<At<String>>,

    /// The protocol of Redis.
    #[schemars(extend("default" = default_address(ListenerId::Resp)))]
    resp: Option<At<String>>,

    /// Host names, without ports, that HTTP requests may have in their `Host` header besides `localhost` and the
    /// addresses of this server. Requests for other hosts are rejected if this list is given, or if `http` is on the
    /// loopback without API keys. A proxy on the same machine may need an entry.
    #[serde(default)]
    #[schemars(with = "Vec<String>", example = ["limits.example.com"])]
    pub(crate) hosts: Vec<At<String>>,
}

/// The address of each listener, indexed by [`ListenerId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddresses([Bind; LISTENER_COUNT]);

/// Everything that differs between listeners, except for their protocols.
pub(crate) struct ListenerEntry {
    pub(crate) id: ListenerId,
    /// The name in the configuration, in logs and in metrics.
    pub(crate) name: &'static str,
    /// The default port, on the loopback address.
    pub(crate) default_port: u16,
    /// The protocols that TLS offers to clients.
    pub(crate) alpn: &'static [&'static [u8]],
    /// The response codes, for metrics.
    pub(crate) codes: &'static [&'static str],
    /// Starts to accept connections.
    pub(crate) start: fn(&mut Accepting, &BoundListener, StartContext),
}

/// The parts of the server that a protocol needs.
pub(crate) struct StartContext {
    pub(crate) active: Arc<ActiveConfig>,
    /// The metrics of the server.
    pub(crate) metrics: Arc<Metrics>,
    /// The metrics of this listener.
    pub(crate) own_metrics: Arc<ListenerMetrics>,
    pub(crate) reloader: Arc<Reloader>,
}

/// A listener that other machines can reach without TLS or API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} would listen on {address}, which others can reach, without {missing}")]
pub struct Exposed {
    pub(crate) name: &'static str,
    address: SocketAddr,
    pub(crate) missing: &'static str,
}

/// The number of listeners.
pub(crate) const LISTENER_COUNT: usize = 3;

/// All listeners, in the order of [`ListenerId`].
pub(crate) const LISTENERS: [ListenerEntry; LISTENER_COUNT] = [
    ListenerEntry {
        id: ListenerId::Http,
        name: "http",
        default_port: 8080,
        alpn: http::ALPN,
        codes: &http::CODES,
        start: |accepting, bound, context| {
            let StartContext { active, metrics, own_metrics, reloader } = context;
            let reload = Arc::new(move || reloader.reload());
            accepting.spawn(bound, HttpService::new(active, metrics, own_metrics, reload));
        },
    },
    ListenerEntry {
        id: ListenerId::Grpc,
        name: "grpc",
        default_port: 8081,
        alpn: &[b"h2"],
        codes: &envoy::CODES,
        start: |accepting, bound, context| {
            accepting.spawn(bound, Grpc::new(context.active, context.own_metrics));
        },
    },
    ListenerEntry {
        id: ListenerId::Resp,
        name: "resp",
        default_port: 6380,
        alpn: &[],
        codes: &resp::CODES,
        start: |accepting, bound, context| {
            accepting.spawn(bound, RespService::new(context.active, context.own_metrics));
        },
    },
];

impl ListenerId {
    /// Returns the name in the configuration, in logs and in metrics.
    pub fn name(self) -> &'static str {
        LISTENERS[self as usize].name
    }
}

fn default_address(listener: ListenerId) -> String {
    ListenAddresses::default()[listener].to_string()
}

impl ListenSection {
    /// Returns the address of each listener, if the configuration has it.
    pub(crate) fn addresses(&self) -> [(ListenerId, &Option<At<String>>); LISTENER_COUNT] {
        let Self { http, grpc, resp, hosts: _ } = self;
        [(ListenerId::Http, http), (ListenerId::Grpc, grpc), (ListenerId::Resp, resp)]
    }
}

impl ListenAddresses {
    /// No listener has an address.
    pub(crate) const OFF: Self = Self([Bind::Off; LISTENER_COUNT]);

    /// Returns true if no listener has an address.
    pub fn all_off(&self) -> bool {
        *self == Self::OFF
    }
}

impl Default for ListenAddresses {
    fn default() -> Self {
        Self(LISTENERS.map(|entry| Bind::loopback(entry.default_port)))
    }
}

impl Index<ListenerId> for ListenAddresses {
    type Output = Bind;

    fn index(&self, id: ListenerId) -> &Bind {
        &self.0[id as usize]
    }
}

impl IndexMut<ListenerId> for ListenAddresses {
    fn index_mut(&mut self, id: ListenerId) -> &mut Bind {
        &mut self.0[id as usize]
    }
}

/// Returns the listeners that other machines can reach without TLS or API keys, unless the settings allow it.
pub(crate) fn exposed(settings: &Settings) -> impl Iterator<Item = Exposed> {
    LISTENERS.iter().filter_map(|entry| {
        let Bind::At(address) = settings.listen[entry.id] else { return None };
        let is_public = !address.ip().to_canonical().is_loopback();
        let missing = settings.security.missing(entry.id).filter(|_| is_public)?;
        Some(Exposed { name: entry.name, address, missing })
    })
}

/// Rejects listeners that other machines can reach without TLS and API keys, unless the settings allow it.
pub(crate) fn check_exposure(settings: &Settings) -> Result<(), Exposed> {
    exposed(settings).next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_the_order_of_their_ids() {
        for (index, entry) in LISTENERS.iter().enumerate() {
            assert_eq!((entry.id as usize, entry.id.name()), (index, entry.name));
        }
    }
}
