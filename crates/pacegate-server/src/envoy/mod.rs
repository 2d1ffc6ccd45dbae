//! Envoy's rate limit service: its protocol, and the files and environment of envoyproxy/ratelimit.

#[cfg(test)]
mod cases_tests;
mod compile;
mod decide;
mod environment;
mod file;
mod grpc;
mod json;
mod limits;
mod metadata;
mod name;
mod options;
mod pattern;
pub(crate) mod proto;
mod resolve;
mod response;
mod rlqs;
mod rules;
#[cfg(test)]
mod rules_tests;
mod stats;
mod store_url;
mod variables;
mod xds;

pub(crate) use decide::{EnvoyDecision, EnvoyError, decide, decide_bytes};
pub(crate) use environment::Deployment;
pub use environment::Logging;
pub(crate) use file::{FileError, RuleFile, read_bytes};
pub(crate) use grpc::{CODES, Grpc};
pub(crate) use options::EnvoyOptions;
pub(crate) use rlqs::{MIN_PERIOD as MIN_QUOTA_PERIOD, QuotaRegistry};
pub(crate) use rules::Rules;
pub use rules::WrittenRule;
pub(crate) use stats::{HitStats, Pages, Statsd};
pub(crate) use variables::EnvironmentError;
pub use xds::ConfigClient;
pub(crate) use xds::{AcceptedResources, Resources, rules as resource_rules};
