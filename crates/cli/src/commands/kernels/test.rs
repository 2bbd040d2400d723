//! Tests of kernels against f64 sums and against each other.

use super::device::{device_name, filter, nothing};
use crate::args::KernelsTestArgs;
use crate::{interrupt, output};
use anyhow::{Result, bail};
use latent_backends::DeviceKernels;
use latent_conformance::{CaseBackend, CaseOutcome, CaseVerdict};
use serde_json::json;
use std::collections::BTreeMap;

/// Results of the cases of one kernel.
#[derive(Default)]
struct KernelTally {
    passed: usize,
    failed: usize,
    skipped: Option<String>,
    /// Maximum error of a case, relative to its bound.
    worst: f64,
    problems: Vec<String>,
}

pub(super) fn run(device: &DeviceKernels, args: &KernelsTestArgs) -> Result<()> {
    let (backend, filter) = (&*device.kernels, filter(device, &args.filter, args.isa)?);
    let (mut outcomes, mut failed) = (Vec::new(), 0);
    // In the order of the table of kernels.
    let mut sums: Vec<(String, KernelTally)> =
        backend.kernels().into_iter().map(|k| (k.name, KernelTally::default())).collect();
    // Outcomes arrive in the order of cases. The table is in the order of kernels.
    let place: BTreeMap<String, usize> =
        sums.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
    latent_conformance::test(backend, &latent_conformance::cases(), &filter, &mut |outcome| {
        let sum = &mut sums[place[&outcome.kernel]].1;
        match &outcome.verdict {
            CaseVerdict::Passed { of_bound } => {
                sum.passed += 1;
                sum.worst = sum.worst.max(*of_bound);
            }
            CaseVerdict::Skipped { missing } => sum.skipped = Some(missing.clone()),
            CaseVerdict::Failed { problem } => {
                failed += 1;
                sum.failed += 1;
                sum.problems.push(format!("{}: {problem}", outcome.case));
            }
        }
        outcomes.push(outcome);
        !interrupt::asked()
    });
    if outcomes.is_empty() && !interrupt::asked() {
        return nothing(&args.filter);
    }
    if args.json {
        let (total, skipped) = (outcomes.len(), sums.iter().filter(|(_, sum)| sum.skipped.is_some()).count());
        output::json(&json!({
            "device": device_name(device),
            "levels": backend.levels(),
            "cases": outcomes,
            "passed": total - failed - count_skipped(&outcomes),
            "failed": failed,
            "skipped_kernels": skipped,
        }))?;
    } else {
        if device.gpu.is_some() {
            output::line(&device_name(device))?;
        }
        print_test(backend, &sums, &outcomes, args.cases)?;
    }
    if failed > 0 {
        bail!("{failed} of {} cases failed", outcomes.len());
    }
    Ok(())
}

fn count_skipped(outcomes: &[CaseOutcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome.verdict, CaseVerdict::Skipped { .. })).count()
}

fn print_test(
    backend: &dyn CaseBackend,
    sums: &[(String, KernelTally)],
    outcomes: &[CaseOutcome],
    cases: bool,
) -> Result<()> {
    output::line(&format!("{:<36}{:>6}  {:<8}{:>24}", "kernel", "cases", "", "worst error of its bound"))?;
    for (name, sum) in sums {
        if let Some(missing) = &sum.skipped {
            output::line(&format!("{name:<36}{:>6}  skipped: no {missing} here", ""))?;
            continue;
        }
        let ran = sum.passed + sum.failed;
        if ran == 0 {
            continue;
        }
        let verdict = if sum.failed > 0 { "FAILED" } else { "ok" };
        output::line(&format!("{name:<36}{ran:>6}  {verdict:<8}{:>22.1} %", 100.0 * sum.worst))?;
        for problem in &sum.problems {
            output::line(&format!("    {problem}"))?;
        }
        if cases {
            for outcome in outcomes.iter().filter(|outcome| outcome.kernel == *name) {
                output::line(&format!("    {}", outcome.case))?;
            }
        }
    }
    for level in backend.levels().iter().filter(|level| !level.available) {
        output::line(&format!("skipped: this machine does not support {}", level.name))?;
    }
    let (failed, skipped) = (sums.iter().map(|(_, sum)| sum.failed).sum::<usize>(), count_skipped(outcomes));
    let kernels = sums.iter().filter(|(_, sum)| sum.passed + sum.failed > 0).count();
    let ran = outcomes.len() - skipped;
    output::line(&format!(
        "{kernels} kernels, {ran} cases: {} passed, {failed} failed; {skipped} skipped",
        ran - failed
    ))
}
