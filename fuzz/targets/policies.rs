//! Fuzzes policy files, of Pacegate and of envoyproxy/ratelimit.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::policies(data));
