//! A wrong kernel is detected in every operation.
#![allow(missing_docs, reason = "tests")]

use latent_conformance::{
    CaseBackend, CaseKernel, CaseOperands, CaseVerdict, CpuCaseBackend, KernelCase, KernelFilter, KernelJob,
    KernelLevel, cases, test,
};
use std::collections::{BTreeMap, HashSet};

/// The fault in the results.
#[derive(Clone, Copy)]
enum ResultFault {
    /// One result is off by a tenth of the largest, which exceeds even the bounds of f16
    /// arithmetic.
    Off,
    /// One result is NaN.
    Nan,
    /// One result is missing.
    Short,
    /// The last bit of one result differs at all levels except the lowest.
    Bit,
}

/// The CPU backend with a fault in its results.
struct FaultyCpu(CpuCaseBackend, ResultFault);

struct FaultyCpuJob<'o>(Box<dyn KernelJob + Send + 'o>, ResultFault, bool);

impl KernelJob for FaultyCpuJob<'_> {
    fn run(&mut self, copy: usize) {
        self.0.run(copy);
    }

    fn results(&self) -> Vec<f32> {
        let mut results = self.0.results();
        let largest = results.iter().fold(0.0f32, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
        let at = results.iter().rposition(|v| v.is_finite()).unwrap_or(0);
        match self.1 {
            ResultFault::Off => results[at] += 0.1 * largest.max(1e-3),
            ResultFault::Nan => results[at] = f32::NAN,
            ResultFault::Short => drop(results.pop()),
            ResultFault::Bit if self.2 => {}
            ResultFault::Bit => results[at] = f32::from_bits(results[at].to_bits() ^ 1),
        }
        results
    }
}

impl CaseBackend for FaultyCpu {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn levels(&self) -> Vec<KernelLevel> {
        self.0.levels()
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.0.features()
    }

    fn kernels(&self) -> Vec<CaseKernel> {
        self.0.kernels()
    }

    fn serves(&self, kernel: &CaseKernel, case: &KernelCase) -> bool {
        self.0.serves(kernel, case)
    }

    fn prepare<'o>(
        &self,
        kernel: &CaseKernel,
        case: &'o KernelCase,
        operands: &'o CaseOperands,
    ) -> Result<Box<dyn KernelJob + Send + 'o>, String> {
        let lowest = kernel.level == "portable";
        Ok(Box::new(FaultyCpuJob(self.0.prepare(kernel, case, operands)?, self.1, lowest)))
    }
}

/// Numbers of passed and failed cases by operation.
fn verdicts(fault: ResultFault, words: &str) -> BTreeMap<&'static str, (usize, usize)> {
    let mut found: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    // One size of each product is enough.
    let few: Vec<KernelCase> = cases()
        .into_iter()
        .filter(|c| !c.name().starts_with("linear") || c.name().contains("m=3,"))
        .collect();
    test(
        &FaultyCpu(CpuCaseBackend::new(), fault),
        &few,
        &KernelFilter::new(&[words.to_owned()]),
        &mut |outcome| {
            let entry = found.entry(outcome.operation).or_default();
            match outcome.verdict {
                CaseVerdict::Passed { .. } => entry.0 += 1,
                CaseVerdict::Failed { .. } => entry.1 += 1,
                CaseVerdict::Skipped { .. } => {}
            }
            true
        },
    );
    found
}

#[test]
fn wrong_results_fail_in_every_operation() {
    for fault in [ResultFault::Off, ResultFault::Nan, ResultFault::Short] {
        let found = verdicts(fault, "");
        let operations: HashSet<_> = cases().iter().map(|case| case.family().operation).collect();
        assert_eq!(found.len(), operations.len(), "{found:?}");
        for (operation, (passed, failed)) in found {
            assert!(passed == 0 && failed > 0, "{operation}: {passed} passed, {failed} failed");
        }
    }
}

#[test]
fn a_bit_that_differs_between_tiers_fails_if_equal_bits_are_promised() {
    let best = CpuCaseBackend::new().levels().iter().filter(|level| level.available).count();
    let (passed, failed) = verdicts(ResultFault::Bit, "tiles a8")["linear"];
    // The portable kernels set the expected bits; all others differ from them.
    assert!(passed > 0 && (failed > 0) == (best > 1), "{passed} passed, {failed} failed");
}
