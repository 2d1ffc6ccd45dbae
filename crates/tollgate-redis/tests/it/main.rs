//! Tests of the store on real servers.

mod conformance;
mod kit;
