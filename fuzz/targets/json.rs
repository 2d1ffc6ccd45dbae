//! Fuzzes HTTP request bodies.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::json(data));
