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
mod json;
mod limits;
mod metadata;
mod name;
mod pattern;
mod preface;
mod proto;
mod rules;
#[cfg(test)]
mod rules_tests;

pub(crate) use environment::{Deployment, EnvironmentError};
pub(crate) use file::{FileError, Source as RuleFile};
pub(crate) use grpc::{CODES, Grpc};
pub(crate) use json::{answer as answer_json, domain as domain_of_json};
pub(crate) use rules::{HeaderNames, Options, Rules};
