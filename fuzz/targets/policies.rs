//! Files with policies, ours and those of envoyproxy/ratelimit.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pacegate_server::fuzzing::policies(data));
