#![doc = include_str!("../README.md")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test kit reports failures by panicking"
)]

mod conformance;
mod crossings;
mod history;
mod model;
mod random;
mod rates;
#[cfg(feature = "servers")]
pub mod servers;
mod several;
mod slots;
mod up_to;

pub use conformance::{Subject, conformance, follow_calendar_histories, follow_histories};
pub use crossings::Crossing;
pub use history::{History, Op};
pub use model::{Answer, Model, ReservedUnits};
pub use random::Random;
pub use slots::{SLOTS, slot_of};
