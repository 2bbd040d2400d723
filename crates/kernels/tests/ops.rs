//! The table of cases on every kernel and tier, as run by `latent kernels test`.
#![allow(missing_docs, reason = "tests")]

use latent_conformance::{CaseBackend, CaseVerdict, CpuCaseBackend, KernelFilter, cases, test};
use std::collections::{BTreeMap, HashSet};

/// If the CPU has all features of the highest tier except AMX, a signal handler emulates the AMX
/// instructions.
#[allow(unsafe_code, reason = "AMX instructions are emulated by a signal handler")]
fn with_tiles() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if !latent_kernels::features().amx && latent_emulator::install_amx() {
        // SAFETY: the handler is installed.
        unsafe { latent_kernels::assume_amx() };
    }
}

#[test]
fn every_kernel_passes_its_cases() {
    with_tiles();
    let (mut passed, mut skipped, mut failed) = (0, BTreeMap::new(), Vec::new());
    test(&CpuCaseBackend::new(), &cases(), &KernelFilter::default(), &mut |outcome| {
        match outcome.verdict {
            CaseVerdict::Passed { of_bound } => {
                assert!(of_bound <= 1.0);
                passed += 1;
            }
            CaseVerdict::Skipped { missing } => *skipped.entry(missing).or_insert(0) += 1,
            CaseVerdict::Failed { problem } => {
                failed.push(format!("{} {}: {problem}", outcome.kernel, outcome.case));
            }
        }
        true
    });
    for (missing, cases) in &skipped {
        println!("skipped: {cases} cases, since this machine has no {missing}");
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(passed > 1000, "only {passed} cases ran");
}

#[test]
fn every_kernel_has_a_case_and_names_are_unique() {
    let (cpu, cases) = (CpuCaseBackend::new(), cases());
    let kernels = cpu.kernels();
    for kernel in &kernels {
        assert!(cases.iter().any(|case| cpu.serves(kernel, case)), "no case for {}", kernel.name);
    }
    let names: HashSet<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names.len(), kernels.len());
    for (contract, _) in latent_kernels::table() {
        assert!(names.contains(contract.name), "the backend lacks kernel {}", contract.name);
    }
    let distinct: HashSet<String> = cases.iter().map(latent_conformance::KernelCase::name).collect();
    assert_eq!(distinct.len(), cases.len());
}
