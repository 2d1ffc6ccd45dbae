//! Tests of the middleware.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a panic fails the test")]

mod addresses;
mod budgets;
mod denials;
mod grpc;
mod headers;
mod kit;
mod layer;
mod outgoing;
mod reqwest;
mod resolvers;
mod settling;
mod tonic;
mod usage;
