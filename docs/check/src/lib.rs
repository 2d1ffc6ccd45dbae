//! The examples of the documents as doctests: `cargo test --doc -p tollgate-docs`.

#[doc = include_str!("../../../README.md")]
pub mod readme {}

#[doc = include_str!("../../algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("../../guide/rust.md")]
pub mod guide_rust {}

#[doc = include_str!("../../guide/redis.md")]
pub mod guide_redis {}

#[doc = include_str!("../../guide/functions.md")]
pub mod guide_functions {}

#[doc = include_str!("../../guide/actix.md")]
pub mod guide_actix {}

#[doc = include_str!("../../guide/axum.md")]
pub mod guide_axum {}

#[doc = include_str!("../../guide/tonic.md")]
pub mod guide_tonic {}

#[doc = include_str!("../../guide/outgoing.md")]
pub mod guide_outgoing {}

#[doc = include_str!("../../failure-modes.md")]
pub mod failure_modes {}

#[doc = include_str!("../../layouts.md")]
pub mod layouts {}
