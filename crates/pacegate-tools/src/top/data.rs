//! The parts of `GET /v1/live` that are shown. All fields are optional, because the server may be of another
//! version. A test of `pacegate-cli` compares them with the OpenAPI document of the server.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Live statistics of a server.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Live {
    pub(super) now: f64,
    pub(super) started: u64,
    pub(super) version: String,
    pub(super) revision: u64,
    pub(super) reload_complaint: Option<String>,
    pub(super) draining: bool,
    pub(super) policies: Vec<Policy>,
    pub(super) policies_total: usize,
    pub(super) history: Chart,
    pub(super) busiest: Vec<TopKey>,
    pub(super) most_denied: Vec<TopKey>,
    pub(super) blocked: Vec<Block>,
    pub(super) blocked_total: u64,
    pub(super) store: Store,
    pub(super) listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) mode: String,
    pub(super) limits: Vec<Limit>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) shadow_denied: u64,
    pub(super) allowed_units: u64,
    pub(super) used: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Limit {
    pub(super) limit: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Chart {
    pub(super) from: u64,
    pub(super) length: usize,
    pub(super) policies: HashMap<String, Counts>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Counts {
    pub(super) allowed: Vec<u32>,
    pub(super) denied: Vec<u32>,
    pub(super) shadow_denied: Vec<u32>,
    pub(super) allowed_units: Vec<u32>,
    pub(super) denied_units: Vec<u32>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct TopKey {
    pub(super) policy: String,
    pub(super) key: String,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Block {
    pub(super) policy: String,
    pub(super) key: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Store {
    pub(super) kind: String,
    pub(super) reachable: bool,
    pub(super) keys: u64,
    pub(super) max_keys: u64,
    pub(super) reservations: u64,
    pub(super) outage: Option<String>,
    pub(super) breaker: String,
    pub(super) servers: Vec<Server>,
    pub(super) calls: u64,
    pub(super) requests: u64,
    pub(super) timed_out: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Server {
    pub(super) round_trip: f64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) connections: u64,
    pub(super) latency: Latency,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}
