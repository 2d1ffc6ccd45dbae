//! Envoy's rate limit service: its protocol, and the files and environment of envoyproxy/ratelimit.

mod answer;
mod ask;
#[cfg(test)]
mod cases_tests;
mod compile;
mod decide;
mod environment;
mod file;
mod grpc;
#[cfg(test)]
mod grpc_tests;
#[allow(dead_code, reason = "for the HTTP listener, at POST /json")]
mod json;
mod limits;
#[allow(dead_code, reason = "its way back is for JSON")]
mod metadata;
mod name;
mod pattern;
mod preface;
mod proto;
mod rules;
#[cfg(test)]
mod rules_tests;

pub(crate) use decide::decide_bytes;
pub(crate) use environment::Deployment;
pub(crate) use file::Source as RuleFile;
pub(crate) use file::read_bytes;
pub(crate) use grpc::{CODES, Grpc};
#[allow(unused_imports, reason = "for the HTTP listener, at POST /json")]
pub(crate) use json::{answer as answer_json, domain as domain_of_json};
pub(crate) use rules::{Options, Rules};
