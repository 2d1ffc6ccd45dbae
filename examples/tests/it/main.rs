//! The examples, driven over real sockets, with budgets in memory and in a Redis.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

#[path = "../../actix.rs"]
mod actix_example;
#[path = "../../attribute.rs"]
#[expect(dead_code, reason = "its main is for programs")]
mod attribute_example;
#[path = "../../axum.rs"]
#[expect(dead_code, reason = "its main is for programs")]
mod axum_example;
#[path = "../../hyper.rs"]
#[expect(dead_code, reason = "its main is for programs")]
mod hyper_example;
#[path = "../../outgoing.rs"]
#[expect(dead_code, reason = "its main is for programs")]
mod outgoing_example;
#[path = "../../tonic.rs"]
#[expect(dead_code, reason = "its main is for programs")]
mod tonic_example;

mod actix_driven;
mod attribute_driven;
mod axum_driven;
mod hyper_driven;
mod kit;
mod outgoing_driven;
mod tonic_driven;
