//! Real servers for tests: Redis and Valkey, alone, as a cluster or under sentinels, and a proxy that misbehaves; Envoy
//! and nginx, to stand before a service; a Python with clients; and Chromium, to look at pages.
//!
//! Everything runs as a child process on loopback, with a directory and ports of its own, and ends when its handle is
//! dropped. A handle in a `static` is never dropped, and its process stays behind. Linux only.
//!
//! All of it panics when something goes wrong, and says what.

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
