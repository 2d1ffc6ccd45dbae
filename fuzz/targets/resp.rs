//! Fuzzes the input of Redis clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::resp(data));
