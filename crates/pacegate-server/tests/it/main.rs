//! Tests of the library's public interface. Tests of the program are in `pacegate-cli`.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod config;
mod config_hostile;
mod fuzzing;
