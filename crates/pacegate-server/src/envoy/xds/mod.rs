//! Configuration over xDS: follows config servers, as envoyproxy/ratelimit does with `CONFIG_TYPE=GRPC_XDS_SOTW`.
//!
//! Each config server has its own stream and sends all of its resources each time. They are activated together with the
//! last resources of the other config servers, or rejected as a whole. Accepted resources stay active while a config
//! server is unreachable.

mod client;
mod options;
mod proto;
mod resource;
mod stream;

pub use client::ConfigClient;
pub(crate) use options::XdsOptions;
pub(crate) use resource::{AcceptedResources, Resources, rules};
