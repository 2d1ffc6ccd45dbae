#![doc = include_str!("../README.md")]

mod acl;
mod batch;
mod cell;
mod cluster;
mod denials;
pub mod doctor;
mod job;
mod lane;
mod layout;
mod leases;
mod link;
mod mark;
mod replay;
mod resolver;
mod script;
mod stats;
mod store;
mod time;
mod url;
mod waiter;
mod wire;

pub use acl::{ACL_RULES, LAYOUT_ACL_RULES, SENTINEL_ACL_RULES};
pub use layout::{Layout, LayoutError, Template};
pub use stats::{RedisStats, ServerStats};
pub use store::{ConnectError, RedisStore, RedisStoreBuilder};
pub use url::{RedisUrl, UrlError};
