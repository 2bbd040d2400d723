//! The declared table of cases, on the device.

use super::Gpu;
use crate::testing::device;
use latent_conformance::{Filter, Verdict, cases, test};

/// Runs the cases of operations that begin like this.
fn run(operation: &str, fewest: usize) {
    let Some(device) = device() else { return };
    let (mut ran, mut wrong) = (0, Vec::new());
    let cases: Vec<_> = cases().into_iter().filter(|case| case.operation().starts_with(operation)).collect();
    test(&Gpu::on(device), &cases, &Filter::new(&[]), &mut |outcome| {
        ran += 1;
        if !matches!(outcome.verdict, Verdict::Passed { .. }) {
            wrong.push(format!("{}: {:?}", outcome.case, outcome.verdict));
        }
        true
    });
    assert!(wrong.is_empty(), "{} of {ran} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran >= fewest, "{ran} cases");
}

#[test]
fn products_are_those_of_the_reference() {
    run("linear", 600);
}

#[test]
fn rows_of_embeddings_are_those_of_the_reference() {
    run("embed", 20);
}

#[test]
fn entries_for_4_bit_weights_are_those_of_the_reference() {
    run("w4_", 600);
}
