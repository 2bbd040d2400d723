//! Correctness tests: compares every kernel of a case with the reference and with the other
//! kernels.

use crate::backend::{CaseBackend, CaseKernel};
use crate::case::KernelCase;
use crate::filter::KernelFilter;
use crate::reference::{BitIdentity, ReferenceResults};
use serde::Serialize;

/// The verdict on a kernel for one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum CaseVerdict {
    /// All results are within the bound.
    Passed {
        /// Largest error, relative to the allowed error.
        of_bound: f64,
    },
    /// A wrong result or a broken promise.
    Failed { problem: String },
    /// This machine cannot run the kernel.
    Skipped {
        /// The missing feature.
        missing: String,
    },
}

/// Result of one case on one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct CaseOutcome {
    /// Name of the operation.
    pub operation: &'static str,
    pub case: String,
    pub kernel: String,
    /// Level that the kernel is compiled for.
    pub level: &'static str,
    /// The allowed error relative to a result's size.
    pub bound: f64,
    /// The reason for the bound.
    pub reason: &'static str,
    #[serde(flatten)]
    pub verdict: CaseVerdict,
}

/// Runs all `cases` that pass `filter` on the kernels of a backend. `sink` receives each outcome
/// and returns whether to continue.
pub fn test(
    backend: &dyn CaseBackend,
    cases: &[KernelCase],
    filter: &KernelFilter,
    sink: &mut dyn FnMut(CaseOutcome) -> bool,
) {
    let kernels = backend.kernels();
    for case in cases {
        let name = case.name();
        let serving: Vec<&CaseKernel> = kernels
            .iter()
            .filter(|kernel| backend.serves(kernel, case) && filter.lets(kernel, &name))
            .collect();
        if serving.is_empty() {
            continue;
        }
        let bound = case.bound();
        let mut check = CaseCheck::new(backend, case);
        for kernel in serving {
            let verdict = match &kernel.missing {
                Some(missing) => CaseVerdict::Skipped { missing: missing.clone() },
                None => match check.run(kernel) {
                    Ok(of_bound) => CaseVerdict::Passed { of_bound },
                    Err(problem) => CaseVerdict::Failed { problem },
                },
            };
            let go_on = sink(CaseOutcome {
                operation: case.operation(),
                case: name.clone(),
                kernel: kernel.name.clone(),
                level: kernel.level,
                bound: bound.error,
                reason: bound.reason,
                verdict,
            });
            if !go_on {
                return;
            }
        }
    }
}

/// A case with its operands and reference, computed once for all kernels.
struct CaseCheck<'c> {
    backend: &'c dyn CaseBackend,
    case: &'c KernelCase,
    operands: crate::case::CaseOperands,
    truth: ReferenceResults,
    /// Name and result bits of the first kernel, with which the others are compared.
    first: Option<(String, Vec<u32>)>,
}

impl<'c> CaseCheck<'c> {
    fn new(backend: &'c dyn CaseBackend, case: &'c KernelCase) -> CaseCheck<'c> {
        // One copy suffices: only measurements need several, to read operands from memory.
        let operands = case.operands(1);
        let truth = case.truth(&operands).flushing(backend.flushes());
        CaseCheck { backend, case, operands, truth, first: None }
    }

    /// Runs a kernel and returns its largest error relative to the bound.
    fn run(&mut self, kernel: &CaseKernel) -> Result<f64, String> {
        let mut job = self.backend.prepare(kernel, self.case, &self.operands)?;
        job.run(0);
        let found = job.results();
        let bound = self.case.bound();
        let worst = self.truth.compare(&found, &bound)?;
        // After the comparison, because the properties compare further runs with this one.
        job.promises()?;
        let lowest = self.backend.levels().first().is_some_and(|level| level.name == kernel.level);
        if bound.same_bits == BitIdentity::All || (bound.same_bits == BitIdentity::AboveLowest && !lowest) {
            let bits: Vec<u32> =
                // The payload of a NaN is not specified, so all NaNs are equal.
                found.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect();
            match &self.first {
                None => self.first = Some((kernel.name.clone(), bits)),
                Some((name, first)) => {
                    if let Some(i) = first.iter().zip(&bits).position(|(a, b)| a != b) {
                        return Err(format!("result {i} differs from that of {name} in its bits"));
                    }
                }
            }
        }
        Ok(worst)
    }
}
