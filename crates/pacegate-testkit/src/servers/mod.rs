//! Real servers for tests: Redis and Valkey as a single server, as a cluster or with sentinels, and a proxy
//! that injects faults; Envoy and nginx as front proxies; Python with client libraries; and Chromium for web
//! pages.
//!
//! Each runs as a child process on the loopback address, with a separate directory and separate ports, and
//! ends when its handle is dropped. A handle in a `static` is never dropped, so its process keeps running.
//! Linux only.
//!
//! All functions panic with a message if something fails.

mod chromium;
mod client;
mod cluster;
mod envoy;
mod flavor;
mod nginx;
mod options;
mod port;
mod process;
mod program;
mod proxy;
mod sentinels;
mod server;
mod tls;
mod wait;

pub use chromium::{Chromium, Page, Scheme};
pub use client::{Client, Reply};
pub use cluster::Cluster;
pub use envoy::{Envoy, EnvoyOptions};
pub use flavor::Flavor;
pub use nginx::Nginx;
pub use options::ServerOptions;
pub use port::Port;
pub use program::python;
pub use proxy::Proxy;
pub use sentinels::Sentinels;
pub use server::Server;
pub use tls::Certificates;
pub use wait::eventually;
