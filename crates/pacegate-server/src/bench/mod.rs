//! A load generator for rate limiters, which also checks them.

pub(crate) mod check;
mod cpu;
mod history;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod report;
pub(crate) mod target;
