//! The examples of the documentation as doctests: `cargo test --doc -p pacegate-docs`. `build.rs` completes
//! them.

#[doc = include_str!(concat!(env!("OUT_DIR"), "/README.md"))]
pub mod readme {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/algorithms.md"))]
pub mod algorithms {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/rust.md"))]
pub mod guide_rust {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/store.md"))]
pub mod guide_store {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/plans.md"))]
pub mod guide_plans {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/redis.md"))]
pub mod guide_redis {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/functions.md"))]
pub mod guide_functions {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/actix.md"))]
pub mod guide_actix {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/axum.md"))]
pub mod guide_axum {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/budgets.md"))]
pub mod guide_budgets {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/tonic.md"))]
pub mod guide_tonic {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/governor.md"))]
pub mod guide_governor {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/notifications.md"))]
pub mod guide_notifications {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/outgoing.md"))]
pub mod guide_outgoing {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/failure-modes.md"))]
pub mod failure_modes {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/layouts.md"))]
pub mod layouts {}
