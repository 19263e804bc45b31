#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| doors::kept::check(input));
