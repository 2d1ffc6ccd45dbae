//! Tests of the middleware.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests tell by panicking")]

mod addresses;
mod grpc;
mod headers;
mod kit;
mod layer;
mod outgoing;
mod resolvers;
mod settling;
