#![doc = include_str!("../README.md")]

mod active_config;
mod audit;
mod blocks;
mod check;
mod client;
mod config;
mod engine;
mod envoy;
mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod inline_limits;
mod listeners;
mod live;
mod local;
mod long_key_digest;
mod metrics;
mod outage;
mod reload;
mod reservations;
mod resp;
mod server;
mod service;
mod source;
mod thresholds;
mod trace;

pub use self::{
    client::{Client, ClientError},
    config::{
        Bind, BindError, ConfigError, DEFAULT_CONFIG, Descriptors, Environment, LoadError,
        Settings, StoreSettings, load as load_config, read as read_config,
        reference as config_reference, schema as config_schema, warnings as config_warnings,
    },
    envoy::{ConfigClient, Logging, WrittenRule},
    inline_limits::InlineLimitError,
    listeners::{ListenAddresses, ListenerId},
    local::{LocalEngine, LocalError, Units, parse_inline_limits},
    reload::{ReloadError, Reloader},
    server::{Endpoint, Server, StartError},
    source::{ConfigSource, Overrides, SourceError},
    trace::{Exporter, TraceError},
};

/// The JavaScript module that draws the charts of the dashboard, for pages that are not served.
pub const CHART_SCRIPT: &str = include_str!("../assets/chart.js");
