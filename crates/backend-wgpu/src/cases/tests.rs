//! Runs the table of cases on the device.

use super::GpuCaseBackend;
use crate::GpuBackend;
use crate::testing::device;
use latent_conformance::{CaseVerdict, KernelCase, KernelFilter, cases, test};

/// Runs the cases whose operation begins with `operation`.
fn run(operation: &str, fewest: usize) {
    let Some(device) = device() else { return };
    let cases: Vec<_> = cases().into_iter().filter(|case| case.operation().starts_with(operation)).collect();
    run_cases(&GpuCaseBackend::on(device), &cases, "", fewest);
}

/// Runs cases on the kernels whose names contain a word.
fn run_cases(gpu: &GpuCaseBackend, cases: &[KernelCase], word: &str, fewest: usize) {
    let (mut ran, mut wrong) = (0, Vec::new());
    test(gpu, cases, &KernelFilter::new(&[word.to_owned()]), &mut |outcome| {
        ran += 1;
        if !matches!(outcome.verdict, CaseVerdict::Passed { .. }) {
            wrong.push(format!("{}: {:?}", outcome.case, outcome.verdict));
        }
        true
    });
    assert!(wrong.is_empty(), "{} of {ran} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran >= fewest, "{ran} cases");
}

#[test]
fn products_match_the_reference() {
    run("linear", 600);
}

/// The kernels that default precision uses on hardware, with few rows and with more than a tile
/// has. Only small cases: software adapters are slow.
#[test]
fn rounded_products_match_the_reference() {
    let Some(device) = device() else { return };
    let gpu = GpuCaseBackend::of(&GpuBackend::on(device));
    let small = |case: &KernelCase| matches!(case, KernelCase::Product(case) if case.rows <= 64 && case.outputs < 100);
    let cases: Vec<_> = cases().into_iter().filter(small).collect();
    for (word, needs_f16) in [("gpu_gemv_int8", false), ("gpu_gemm_int8", false), ("gpu_gemm_f16", true)] {
        if !needs_f16 || gpu.device.description.f16 {
            run_cases(&gpu, &cases, word, 30);
        }
    }
}

#[test]
fn rows_of_embeddings_match_the_reference() {
    run("embed", 20);
}

#[test]
fn entries_for_4_bit_weights_match_the_reference() {
    run("w4_", 600);
}

#[test]
fn attention_matches_the_reference() {
    run("attend_latent", 80);
    run("attend_expanded", 17);
}

#[test]
fn the_delta_rule_matches_the_reference_in_rows_and_in_chunks() {
    run("delta_", 30);
}
