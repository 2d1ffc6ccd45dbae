//! Fuzzes the requests of Envoy.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::rls(data));
