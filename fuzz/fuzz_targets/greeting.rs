#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| doors::greeting::check(input));
