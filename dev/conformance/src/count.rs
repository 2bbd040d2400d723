//! Counts of kernel calls at the sizes of real models, as a substitute for timing.

use crate::backend::CaseBackend;
use crate::case::KernelCase;
use crate::filter::KernelFilter;
use latent_graph::KernelCalls;
use serde::Serialize;

/// Counts of one case with one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct CaseCount {
    pub case: String,
    pub kernel: String,
    /// Bytes that must be read.
    pub bytes: f64,
    /// Multiplications and additions.
    pub flops: f64,
    /// Calls on the device.
    pub calls: Vec<KernelCalls>,
}

/// Counts all cases that pass `filter`. `sink` receives each count or error, and returns whether to
/// continue.
pub fn count(
    backend: &dyn CaseBackend,
    filter: &KernelFilter,
    sink: &mut dyn FnMut(Result<CaseCount, String>) -> bool,
) {
    let kernels = backend.kernels();
    for case in backend.real_sizes() {
        let (name, mut known) = (case.name(), Vec::new());
        let serving =
            kernels.iter().filter(|kernel| backend.serves(kernel, &case) && filter.lets(kernel, &name));
        let serving: Vec<_> = serving.collect();
        if serving.is_empty() {
            continue;
        }
        let operands = case.operands(1);
        for kernel in serving {
            let calls = backend.count(kernel, &case, &operands);
            // Skip variants of a kernel with the same calls.
            if calls.as_ref().is_ok_and(|calls| known.contains(calls)) {
                continue;
            }
            known.extend(calls.as_ref().ok().cloned());
            let counted = calls.map(|calls| counted(&case, &name, &kernel.name, calls));
            if !sink(counted.map_err(|problem| format!("{} {name}: {problem}", kernel.name))) {
                return;
            }
        }
    }
}

fn counted(case: &KernelCase, name: &str, kernel: &str, calls: Vec<KernelCalls>) -> CaseCount {
    let work = case.work();
    CaseCount {
        case: name.to_owned(),
        kernel: kernel.to_owned(),
        bytes: work.bytes,
        flops: work.flops,
        calls,
    }
}
