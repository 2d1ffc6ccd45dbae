//! Tests of the store on real servers.

mod batching;
mod conformance;
mod connections;
mod kit;
