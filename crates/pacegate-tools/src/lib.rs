#![doc = include_str!("../README.md")]

pub mod bench;
pub mod doctor;
mod random;
pub mod simulate;
mod text;
pub mod top;

pub use text::{DurationError, format_seconds, grouped, parse_duration, parse_period, table};
