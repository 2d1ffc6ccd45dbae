//! Tests of the middleware.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

mod addresses;
mod grpc;
mod headers;
mod kit;
mod layer;
mod resolvers;
mod settling;
