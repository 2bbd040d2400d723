#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| latent_fuzz_targets::hostile_grammar(bytes));
