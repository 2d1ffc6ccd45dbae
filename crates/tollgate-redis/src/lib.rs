#![doc = include_str!("../README.md")]

mod batch;
mod cell;
mod cluster;
mod denials;
mod job;
mod lane;
mod leases;
mod link;
mod replay;
mod resolver;
mod script;
mod stats;
mod store;
mod time;
mod url;
mod waiter;
mod wire;

pub use stats::{RedisStats, ServerStats};
pub use store::{ConnectError, RedisStore, RedisStoreBuilder};
pub use url::{RedisUrl, UrlError};
