#![doc = include_str!("../README.md")]

pub mod bench;
pub mod doctor;
mod random;
pub mod simulate;
pub mod top;
mod words;

pub use words::grouped;
