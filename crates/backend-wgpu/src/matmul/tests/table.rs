//! The declared table of cases, on the device.

use super::provider::Gpu;
use crate::testing::device;
use latent_conformance::{Filter, Verdict, cases, test};

#[test]
fn products_are_those_of_the_reference() {
    let Some(device) = device() else { return };
    let (mut ran, mut wrong) = (0, Vec::new());
    test(&Gpu { device }, &cases(), &Filter::new(&[]), &mut |outcome| {
        ran += 1;
        if !matches!(outcome.verdict, Verdict::Passed { .. }) {
            wrong.push(format!("{}: {:?}", outcome.case, outcome.verdict));
        }
        true
    });
    assert!(wrong.is_empty(), "{} of {ran} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran >= 300, "{ran} cases");
}
