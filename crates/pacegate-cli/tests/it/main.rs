//! The program as its users meet it: spawned, spoken to and listened to.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod bench;
mod certificates;
mod check;
mod clients;
mod curl;
mod dashboard;
mod deploy;
mod doctor;
mod drain;
mod envoy;
mod envoy_front;
mod examples;
mod explain;
mod exposure;
mod first_minute;
mod floods;
mod guide;
mod help;
mod hostile;
mod keys;
mod layouts;
mod live;
mod nginx_front;
mod operations;
mod outage;
mod permits;
mod program;
mod reload;
mod reload_load;
mod resp;
mod rlaas;
mod roles;
mod schemathesis;
mod secrets;
mod service;
mod simulate;
mod simulate_logs;
mod strangers;
mod tenants;
mod together;
mod top;
mod traces;
mod upstream;
mod validate;
