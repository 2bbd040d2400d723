//! Lists the kernels of each operation and whether they run on this machine.

use crate::backend::{CaseBackend, CaseKernel};
use crate::case::{KernelCase, OperationFamily};
use crate::filter::KernelFilter;
use serde::Serialize;
use std::collections::HashMap;

/// An operation with its formats and kernels.
#[derive(Clone, Debug, Serialize)]
pub struct OperationSupport {
    #[serde(flatten)]
    pub family: OperationFamily,
    pub kernels: Vec<SupportingKernel>,
}

/// A kernel that computes an operation.
#[derive(Clone, Debug, Serialize)]
pub struct SupportingKernel {
    pub kernel: String,
    /// Level that the kernel is compiled for.
    pub level: &'static str,
    /// The features that this machine lacks.
    pub missing: Option<String>,
}

/// Every operation of `cases` that passes `filter`, with its kernels, if any.
pub fn support(
    backend: &dyn CaseBackend,
    cases: &[KernelCase],
    filter: &KernelFilter,
) -> Vec<OperationSupport> {
    let kernels = backend.kernels();
    let mut found: Vec<OperationSupport> = Vec::new();
    let mut place: HashMap<OperationFamily, usize> = HashMap::new();
    for case in cases {
        let (family, name) = (case.family(), case.name());
        let serving: Vec<&CaseKernel> =
            kernels.iter().filter(|kernel| backend.serves(kernel, case)).collect();
        // A case without kernels is listed too, as a gap.
        if !filter.lets_case(&name) && !serving.iter().any(|kernel| filter.lets(kernel, &name)) {
            continue;
        }
        let at = *place.entry(family.clone()).or_insert_with(|| {
            found.push(OperationSupport { family, kernels: Vec::new() });
            found.len() - 1
        });
        for kernel in serving.into_iter().filter(|kernel| filter.lets(kernel, &name)) {
            if found[at].kernels.iter().all(|other| other.kernel != kernel.name) {
                found[at].kernels.push(SupportingKernel {
                    kernel: kernel.name.clone(),
                    level: kernel.level,
                    missing: kernel.missing.clone(),
                });
            }
        }
    }
    found
}
