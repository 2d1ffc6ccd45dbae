//! The table of listeners.
//!
//! To add a listener, write the module that implements [`Protocol`](crate::service::Protocol), and add an entry here,
//! its address in `config/listen.rs`, and its option in the command `serve`.

use std::{
    ops::{Index, IndexMut},
    sync::Arc,
};

use crate::{
    active_config::ActiveConfig,
    config::{Bind, Settings},
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

impl ListenAddresses {
    /// Returns true if no listener has an address.
    pub fn all_off(&self) -> bool {
        self.0.iter().all(|bind| *bind == Bind::Off)
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

/// Returns the listeners that are reachable from other machines without TLS or API keys, with what each lacks.
pub(crate) fn exposed(
    settings: &Settings,
) -> impl Iterator<Item = (&'static str, std::net::SocketAddr, &'static str)> {
    LISTENERS.iter().filter_map(|entry| {
        let Bind::At(address) = settings.listen[entry.id] else { return None };
        let is_public = !address.ip().to_canonical().is_loopback();
        let missing = settings.security.missing(entry.id).filter(|_| is_public)?;
        Some((entry.name, address, missing))
    })
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
