#![doc = include_str!("../README.md")]

mod ad_hoc;
mod audit;
mod blocks;
mod client;
pub mod config;
mod engine;
mod envoy;
mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod http;
mod listeners;
mod live;
mod local;
mod metrics;
mod outage;
mod reload;
mod resp;
mod server;
mod service;
mod source;
mod stand_in;
mod trace;

pub use self::{
    ad_hoc::AdHocError,
    client::{Client, ClientError},
    envoy::{Logging, WrittenRule},
    listeners::{ListenAddresses, ListenerId},
    local::{LocalEngine, LocalError, parse_inline_limits},
    reload::{ReloadError, Reloader},
    server::{Endpoint, Server, StartError},
    source::{ConfigSource, Overrides, SourceError},
    trace::{Exporter, TraceError},
};

/// The JavaScript module that draws the charts of the dashboard, for pages that are not served.
pub const CHART_SCRIPT: &str = include_str!("../assets/chart.js");
