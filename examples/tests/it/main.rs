//! Tests the examples over real sockets, with the memory store and with Redis.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../../actix.rs"]
mod actix_example;
#[path = "../../attribute.rs"]
#[expect(dead_code, reason = "the tests do not call `main`")]
mod attribute_example;
#[path = "../../axum.rs"]
#[expect(dead_code, reason = "the tests do not call `main`")]
mod axum_example;
#[path = "../../hyper.rs"]
#[expect(dead_code, reason = "the tests do not call `main`")]
mod hyper_example;
#[path = "../../outgoing.rs"]
#[expect(dead_code, reason = "the tests do not call `main`")]
mod outgoing_example;
#[path = "../../tonic.rs"]
#[expect(dead_code, reason = "the tests do not call `main`")]
mod tonic_example;

mod actix_driven;
mod attribute_driven;
mod axum_driven;
mod hyper_driven;
mod kit;
mod outgoing_driven;
mod tonic_driven;
