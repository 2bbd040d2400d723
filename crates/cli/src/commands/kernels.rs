//! `latent kernels`: the table of kernel cases, run as tests, as measurements, or listed with what runs here.

use crate::args::{KernelsArgs, KernelsCommand, KernelsPerfArgs, KernelsTestArgs};
use crate::exit::Usage;
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use latent_conformance::{
    Backend, Cpu, Filter, FusedSpeedup, Limits, Measurement, Outcome, PerfOptions, Verdict,
};
use latent_threads::Placement;
use latent_types::Tier;
use latent_types::format_bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(super) fn run(args: &KernelsArgs) -> Result<()> {
    let cpu = Cpu::new();
    match &args.command {
        KernelsCommand::Test(args) => test(&cpu, args),
        KernelsCommand::Perf(args) => perf(&cpu, args),
        KernelsCommand::Support(args) => support(&cpu, args),
    }
}

fn filter(words: &[String], tier: Option<Tier>) -> Filter {
    let filter = Filter::new(words);
    tier.map_or(filter.clone(), |tier| filter.level(tier.name()))
}

/// The error of a filter that matches nothing: a typo should not look like success.
fn nothing(words: &[String]) -> Result<()> {
    let problem = format!(
        "no kernel and case has all of {:?} in its name: see the names with `latent kernels support` or `latent kernels test --cases`",
        words.join(" ")
    );
    Err(Usage(problem).into())
}

/// Results of the cases of one kernel.
#[derive(Default)]
struct Sum {
    passed: usize,
    failed: usize,
    skipped: Option<String>,
    /// The worst error of a case, as a share of its bound.
    worst: f64,
    problems: Vec<String>,
}

fn test(cpu: &Cpu, args: &KernelsTestArgs) -> Result<()> {
    let (mut outcomes, mut failed) = (Vec::new(), 0);
    // in the order of the table of kernels
    let mut sums: Vec<(String, Sum)> = cpu.kernels().into_iter().map(|k| (k.name, Sum::default())).collect();
    let place: BTreeMap<String, usize> =
        sums.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
    latent_conformance::test(
        cpu,
        &latent_conformance::cases(),
        &filter(&args.filter, args.isa),
        &mut |outcome| {
            let sum = &mut sums[place[&outcome.kernel]].1;
            match &outcome.verdict {
                Verdict::Passed { of_bound } => {
                    sum.passed += 1;
                    sum.worst = sum.worst.max(*of_bound);
                }
                Verdict::Skipped { missing } => sum.skipped = Some(missing.clone()),
                Verdict::Failed { problem } => {
                    failed += 1;
                    sum.failed += 1;
                    sum.problems.push(format!("{}: {problem}", outcome.case));
                }
            }
            outcomes.push(outcome);
            !interrupt::asked()
        },
    );
    if outcomes.is_empty() && !interrupt::asked() {
        return nothing(&args.filter);
    }
    if args.json {
        let (total, skipped) = (outcomes.len(), sums.iter().filter(|(_, sum)| sum.skipped.is_some()).count());
        output::json(&json!({
            "levels": cpu.levels(),
            "cases": outcomes,
            "passed": total - failed - count_skipped(&outcomes),
            "failed": failed,
            "skipped_kernels": skipped,
        }))?;
    } else {
        print_test(cpu, &sums, &outcomes, args.cases)?;
    }
    if failed > 0 {
        bail!("{failed} of {} cases failed", outcomes.len());
    }
    Ok(())
}

fn count_skipped(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome.verdict, Verdict::Skipped { .. })).count()
}

fn print_test(cpu: &Cpu, sums: &[(String, Sum)], outcomes: &[Outcome], cases: bool) -> Result<()> {
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
    for level in cpu.levels().iter().filter(|level| !level.available) {
        output::line(&format!("skipped: {}, which this machine does not have", level.name))?;
    }
    let (failed, skipped) = (sums.iter().map(|(_, sum)| sum.failed).sum::<usize>(), count_skipped(outcomes));
    let kernels = sums.iter().filter(|(_, sum)| sum.passed + sum.failed > 0).count();
    let ran = outcomes.len() - skipped;
    output::line(&format!(
        "{kernels} kernels, {ran} cases: {} passed, {failed} failed; {skipped} skipped",
        ran - failed
    ))
}

/// Bytes needed to measure the read bandwidth, with a margin.
const MEASURING: u64 = 768 << 20;

/// How long measured limits are reused: on a shared machine they change.
const LIMITS_STAND: Duration = Duration::from_secs(10);

fn perf(cpu: &Cpu, args: &KernelsPerfArgs) -> Result<()> {
    let wanted = u64::from(args.memory) << 20;
    if let Some(available) = latent_engine::memory::available()
        && available.bytes < wanted + MEASURING
    {
        bail!(
            "--memory {} needs {} beside {} for measuring the limits, but {} are available: give less",
            args.memory,
            format_bytes(wanted),
            format_bytes(MEASURING),
            format_bytes(available.bytes)
        );
    }
    let options = PerfOptions {
        threads: usize::from(args.threads),
        memory: usize::from(args.memory) << 20,
        time: Duration::from_millis(u64::from(args.millis)),
        all: args.all,
    };
    let mut limits = MeasuredLimits::default();
    let (mut found, mut problems, mut printed, mut header) = (Vec::new(), Vec::new(), Ok(()), None);
    latent_conformance::perf(
        cpu,
        &latent_conformance::real_sizes(),
        &filter(&args.filter, args.isa),
        &options,
        &mut |level, threads| limits.of(level, threads),
        &mut |measured| {
            match measured {
                Ok(measured) => {
                    if !args.json && printed.is_ok() {
                        printed = print_measurement(&measured, &mut header);
                    }
                    found.push(measured);
                }
                Err(problem) => problems.push(problem),
            }
            printed.is_ok() && !interrupt::asked()
        },
    );
    printed?;
    if let Some(error) = limits.failure {
        return Err(error).context("measuring what the machine can do");
    }
    if found.is_empty() && problems.is_empty() && !interrupt::asked() {
        return nothing(&args.filter);
    }
    let fused = latent_conformance::fused_speedups(&found);
    if args.json {
        output::json(&json!({
            "threads": args.threads,
            "memory_mib": args.memory,
            "measurements": found,
            "fused": fused,
        }))?;
    } else if let Some(last) = found.last() {
        print_limits(last)?;
        print_fused(&fused)?;
    }
    if !problems.is_empty() {
        bail!("not measured: {}", problems.join("; "));
    }
    Ok(())
}

/// The machine's limits, measured again when they are old.
#[derive(Default)]
struct MeasuredLimits {
    known: Vec<(Tier, usize, Instant, Limits)>,
    /// Why a measurement failed; its limits are NaN.
    failure: Option<latent_backend::BackendError>,
}

impl MeasuredLimits {
    fn of(&mut self, level: &str, threads: usize) -> Limits {
        let tier = level.parse().unwrap_or(Tier::Portable);
        self.known.retain(|(.., at, _)| at.elapsed() < LIMITS_STAND);
        if let Some((.., limits)) = self.known.iter().find(|(t, n, ..)| (*t, *n) == (tier, threads)) {
            return *limits;
        }
        let limits = match latent_backends::cpu().limits(&Placement::anywhere(threads), tier) {
            Ok(found) => Limits {
                read_bandwidth: found.read_bandwidth,
                int8_macs: found.int8_macs,
                f32_macs: found.f32_macs,
                f16_macs: found.f16_macs,
                bf16_macs: found.bf16_macs,
            },
            Err(error) => {
                self.failure = Some(error);
                let none = f64::NAN;
                Limits {
                    read_bandwidth: none,
                    int8_macs: none,
                    f32_macs: none,
                    f16_macs: none,
                    bf16_macs: none,
                }
            }
        };
        self.known.push((tier, threads, Instant::now(), limits));
        limits
    }
}

/// Prints the limits of the last measurement.
fn print_limits(last: &Measurement) -> Result<()> {
    let (limits, threads) = (&last.limits, last.threads);
    let arithmetic = [
        (limits.int8_macs, "int8"),
        (limits.f32_macs, "f32"),
        (limits.f16_macs, "f16"),
        (limits.bf16_macs, "bf16"),
    ];
    // missing instructions have no limit
    let rates = arithmetic.iter().filter(|(macs, _)| *macs > 0.0).enumerate().map(|(i, (macs, ty))| {
        format!(", {:.0}{} {ty}", 2.0 * macs / 1e9, if i == 0 { " GFLOP/s" } else { "" })
    });
    output::line(&format!(
        "limits, {}, {threads} thread{}: {:.1} GB/s{}",
        last.level,
        if threads == 1 { "" } else { "s" },
        limits.read_bandwidth / 1e9,
        rates.collect::<String>()
    ))
}

/// Prints how much faster packed weights are than the same weights as floats, a line per format.
fn print_fused(fused: &[FusedSpeedup]) -> Result<()> {
    let mut formats: Vec<&str> = fused.iter().map(|one| one.format.as_str()).collect();
    formats.dedup();
    if !formats.is_empty() {
        output::line(
            "fused over unpacked: times as fast as the quickest product of the same weights as floats, unpacking not counted",
        )?;
    }
    for format in formats {
        let of_format = fused.iter().filter(|one| one.format == format);
        let cells: Vec<String> = of_format
            .map(|one| {
                format!("m={} {}×{} {:.2} ({})", one.rows, one.inputs, one.outputs, one.speedup, one.unpacked)
            })
            .collect();
        output::line(&format!(" {format:<9}{}", cells.join(", ")))?;
    }
    Ok(())
}

/// Prints one line, preceded by the kernel's name when it changes.
fn print_measurement(m: &Measurement, before: &mut Option<String>) -> Result<()> {
    if before.is_none() {
        output::line(&format!(
            "{:<48}{:>9}{:>6}{:>6} {:<6}{:>4}",
            "kernel and case", "µs", "GB/s", "GFL/s", "limit", "of"
        ))?;
    }
    if before.as_ref() != Some(&m.kernel) {
        output::line(&m.kernel)?;
        *before = Some(m.kernel.clone());
    }
    let bound = match m.bound {
        Some("memory") => "mem.",
        Some(_) => "arith",
        None => "",
    };
    let share = m.of_limit.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share));
    output::line(&format!(
        " {:<47}{:>9.1}{:>6.1}{:>6.0} {bound:<5}{share:>5}",
        m.case, m.micros, m.gb_per_s, m.gflop_per_s
    ))
}

fn support(cpu: &Cpu, args: &crate::args::KernelsSupportArgs) -> Result<()> {
    let (levels, features) = (cpu.levels(), cpu.features());
    let found = latent_conformance::support(cpu, &latent_conformance::cases(), &filter(&args.filter, None));
    if found.is_empty() {
        return nothing(&args.filter);
    }
    let kernels = cpu.kernels();
    let here = kernels.iter().filter(|kernel| kernel.missing.is_none()).count();
    if args.json {
        let features: Map<String, Value> =
            features.into_iter().map(|(name, there)| (name.to_owned(), there.into())).collect();
        return output::json(&json!({
            "backend": cpu.name(),
            "cpu": super::cpu_info::cpu_info(),
            "levels": levels,
            "features": features,
            "kernels": kernels.len(),
            "kernels_here": here,
            "operations": found,
        }));
    }
    output::line(&format!("{}: {}", cpu.name(), super::cpu_info::cpu_info()))?;
    let words = |there: bool| if there { "yes" } else { "no" };
    let named = |wanted: bool| -> String {
        let names: Vec<&str> =
            features.iter().filter(|(_, there)| *there == wanted).map(|(name, _)| *name).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    output::line(&format!("features: {}; not here: {}", named(true), named(false)))?;
    output::line(&format!("kernels: {}, of which {here} run here", kernels.len()))?;
    output::line("yes: runs here; no: the machine lacks what it needs; –: there is no such kernel")?;
    output::line("")?;
    let columns = |cells: Vec<String>| cells.iter().map(|cell| format!("{cell:>9}")).collect::<String>();
    output::line(&format!(
        "{:<16}{:<10}{:<7}{:<6}{}",
        "operation",
        "format",
        "layout",
        "input",
        columns(levels.iter().map(|level| level.name.to_owned()).collect())
    ))?;
    for row in &found {
        let cell = |level: &latent_conformance::Level| {
            let mut there = row.kernels.iter().filter(|kernel| kernel.level == level.name);
            there.next().map_or("–", |kernel| words(kernel.missing.is_none())).to_owned()
        };
        output::line(&format!(
            "{:<16}{:<10}{:<7}{:<6}{}",
            row.family.operation,
            row.family.format,
            row.family.layout,
            row.family.input,
            columns(levels.iter().map(cell).collect())
        ))?;
    }
    Ok(())
}
