//! Random schemas and grammars with expensive combinations stay within bounds of CPU time and
//! memory. `SEARCH_SECONDS` runs more of them.
#![allow(missing_docs, reason = "tests")]

use std::time::{Duration, Instant};

/// The only test of this file, because it measures CPU time and memory of the whole process.
#[test]
fn random_hostile_grammars_stay_within_their_bounds() {
    latent_fuzz_targets::bound_memory();
    let seconds = std::env::var("SEARCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let from: u64 = std::env::var("SEARCH_FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(0);
    let start = Instant::now();
    let mut number = from;
    loop {
        let more = seconds.map(|seconds| start.elapsed() < Duration::from_secs(seconds));
        if !more.unwrap_or(number < 120) {
            break;
        }
        let input = bytes(number);
        let begun = Instant::now();
        let outcome = std::panic::catch_unwind(|| latent_fuzz_targets::hostile_grammar(&input));
        if seconds.is_some() && (outcome.is_err() || begun.elapsed() > Duration::from_millis(700)) {
            println!("{number}: {:?} {}", begun.elapsed(), if outcome.is_err() { "FAILS" } else { "" });
        } else {
            assert!(outcome.is_ok(), "input {number} breaks a bound: see above");
        }
        number += 1;
    }
    println!("{} inputs", number - from);
}

/// The bytes of an input, which are the same in every run.
fn bytes(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let kind = if number.is_multiple_of(3) { (number / 3 % 4) as u8 } else { 0 };
    std::iter::once(kind).chain((0..300).map(|_| next())).collect()
}
