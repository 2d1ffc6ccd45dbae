//! `pacegate bench`: a load generator for rate limiters that also checks their decisions.

pub(crate) mod check;
mod cpu;
mod history;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod report;
pub(crate) mod target;
