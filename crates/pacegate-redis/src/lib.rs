#![doc = include_str!("../README.md")]

mod acl;
mod batch;
mod cell;
mod cluster;
mod command;
mod deny_cache;
pub mod doctor;
mod environment;
mod fingerprint;
mod layout;
mod leases;
mod link;
mod replay;
mod resolver;
mod responder;
mod script;
mod settlement;
mod stats;
mod store;
mod time;
mod tls;
mod url;
mod wire;
mod worker;

pub use acl::{ACL_RULES, LAYOUT_ACL_RULES, SENTINEL_ACL_RULES};
pub use environment::{ByteStream, Connecting, Environment, OperatingSystem};
pub use layout::{Layout, LayoutError, Template};
pub use link::install_crypto_provider;
pub use stats::{RedisStats, ServerStats};
pub use store::{Block, BlocksReply, ConnectError, RedisStore, RedisStoreBuilder};
#[doc(hidden)]
pub use tls::server_verifier;
pub use url::{RedisUrl, UrlError};
