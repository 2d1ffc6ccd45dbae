//! Tests of the store on real servers.

mod acl;
mod conformance;
mod doctor;
mod kit;
