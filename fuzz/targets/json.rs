//! Bodies of requests over HTTP.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::json(data));
