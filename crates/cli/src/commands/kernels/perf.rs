//! Speed of kernels, compared with the device's limits.

use super::device::{device_name, filter, nothing};
use crate::args::KernelsPerfArgs;
use crate::cpu_info::cpu_generation;
use crate::exit::UsageError;
use crate::{interrupt, output, target};
use anyhow::{Context, Result, bail};
use latent_backends::DeviceKernels;
use latent_conformance::{FusedSpeedup, KernelCase, MachinePeaks, Measurement, PerfOptions};
use latent_formats::output_file;
use latent_graph::{KernelTiming, KernelTimings, ProductShape};
use latent_threads::Placement;
use latent_types::{Tier, format_bytes};
use serde_json::json;
use std::time::{Duration, Instant};

/// Bytes needed to measure the read bandwidth, with a margin.
// The buffer must exceed the last-level cache.
const LIMITS_BYTES: u64 = 768 << 20;

/// How long measured limits are reused.
// On a shared machine they change.
const MAX_LIMITS_AGE: Duration = Duration::from_secs(10);

pub(super) fn run(device: &DeviceKernels, args: &KernelsPerfArgs) -> Result<()> {
    let filter = filter(device, &args.filter, args.isa)?;
    if device.gpu.is_some() && args.threads > 1 {
        let problem = format!("--threads {} is for the CPU: a GPU runs kernels one by one", args.threads);
        return Err(UsageError(problem).into());
    }
    if let Some(path) = &args.save {
        if device.gpu.is_some() {
            let problem = "--save stores times of CPU kernels for --tuned: omit --device";
            return Err(UsageError(problem.into()).into());
        }
        target::check(path, args.force)?;
    }
    // A software adapter (lavapipe) keeps copies in main memory in addition to the buffers.
    let copies = 1 + u64::from(device.gpu.as_ref().is_some_and(|gpu| gpu.software));
    let wanted = copies * (u64::from(args.memory) << 20);
    if let Some(available) = latent_engine::memory::available()
        && available.bytes < wanted + LIMITS_BYTES
    {
        bail!(
            "--memory {} needs {} plus {} for measuring the limits, but {} are available: use a smaller \
             --memory",
            args.memory,
            format_bytes(wanted),
            format_bytes(LIMITS_BYTES),
            format_bytes(available.bytes)
        );
    }
    let options = PerfOptions {
        threads: usize::from(args.threads),
        memory: usize::from(args.memory) << 20,
        time: Duration::from_millis(u64::from(args.millis)),
        // --tuned chooses between instruction sets, so --save measures all of them.
        all: args.all || args.save.is_some(),
    };
    let mut limits = MeasuredLimits { device, known: Vec::new(), failure: None };
    let (mut found, mut problems, mut printed, mut header) = (Vec::new(), Vec::new(), Ok(()), None);
    let mut cases = device.kernels.real_sizes();
    if args.save.is_some() {
        // Only products have timings in the file: other operations use the highest instruction set.
        cases.retain(|case| matches!(case, KernelCase::Product(_)));
    }
    latent_conformance::perf(
        &*device.kernels,
        &cases,
        &filter,
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
        return Err(error).context("measuring the machine's limits");
    }
    if found.is_empty() && problems.is_empty() && !interrupt::asked() {
        return match args.save {
            Some(_) => nothing_to_save(&args.filter),
            None => nothing(&args.filter),
        };
    }
    if let Some(path) = args.save.as_deref().filter(|_| !interrupt::asked() && !found.is_empty()) {
        let timings = timings(device, usize::from(args.threads), &found)?;
        output_file::write(path, timings.to_json()?.as_bytes())?;
        output::note(&format!("{}: {} times of kernels, for --tuned", path.display(), timings.len()));
    }
    let fused = latent_conformance::fused_speedups(&found);
    if args.json {
        output::json(&json!({
            "device": device_name(device),
            "threads": args.threads,
            "memory_mib": args.memory,
            "measurements": found,
            "fused": fused,
        }))?;
    } else if let Some(last) = found.last() {
        print_limits(last, device)?;
        print_fused(&fused)?;
    }
    if !problems.is_empty() {
        bail!("not measured: {}", problems.join("; "));
    }
    Ok(())
}

/// Measured times of the kernels that plans choose between.
fn timings(device: &DeviceKernels, threads: usize, found: &[Measurement]) -> Result<KernelTimings> {
    let target = device.backend.target();
    // Kernels are also measured with fewer instruction sets. No plan requests those variants.
    let bound = |m: &Measurement| target.contracts().iter().any(|contract| contract.name == m.kernel);
    let timing = |m: &Measurement| {
        let case = m.product?;
        Some(KernelTiming {
            op: m.operation.to_owned(),
            weight: case.weight.name().to_owned(),
            layout: case.layout.name().to_owned(),
            kernel: m.kernel.clone(),
            shape: ProductShape { rows: case.rows, inputs: case.inputs, outputs: case.outputs },
            micros: m.micros,
        })
    };
    let timings = found.iter().filter(|m| bound(m)).filter_map(timing).collect();
    // The CPU's generation is part of the file: `--tuned` refuses times of another CPU.
    Ok(KernelTimings::new(cpu_generation(), device.backend.isa(None)?, threads, timings))
}

/// The error if a filter matches no product.
fn nothing_to_save(words: &[String]) -> Result<()> {
    let problem = format!(
        "--save stores times of matrix products, but no product name contains all of {:?}: use other words, \
         such as q4_k, or none",
        words.join(" ")
    );
    Err(UsageError(problem).into())
}

/// The machine's limits, measured again when outdated.
struct MeasuredLimits<'d> {
    device: &'d DeviceKernels,
    known: Vec<(Tier, usize, Instant, MachinePeaks)>,
    /// The error of a failed measurement, whose limits are NaN.
    failure: Option<latent_backend::BackendError>,
}

impl MeasuredLimits<'_> {
    fn of(&mut self, level: &str, threads: usize) -> MachinePeaks {
        let tier = level.parse().unwrap_or(Tier::Portable);
        self.known.retain(|(.., at, _)| at.elapsed() < MAX_LIMITS_AGE);
        if let Some((.., limits)) = self.known.iter().find(|(t, n, ..)| (*t, *n) == (tier, threads)) {
            return *limits;
        }
        let limits = match self.device.backend.limits(&Placement::anywhere(threads), tier) {
            Ok(found) => MachinePeaks {
                read_bandwidth: found.read_bandwidth,
                int8_macs: found.int8_macs,
                f32_macs: found.f32_macs,
                f16_macs: found.f16_macs,
                bf16_macs: found.bf16_macs,
            },
            Err(error) => {
                self.failure = Some(error);
                let none = f64::NAN;
                MachinePeaks {
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

fn print_limits(last: &Measurement, device: &DeviceKernels) -> Result<()> {
    let (limits, threads) = (&last.limits, last.threads);
    let runs = match &device.gpu {
        None => format!("{}, {threads} thread{}", last.level, if threads == 1 { "" } else { "s" }),
        Some(_) => device_name(device),
    };
    let arithmetic = [
        (limits.int8_macs, "int8"),
        (limits.f32_macs, "f32"),
        (limits.f16_macs, "f16"),
        (limits.bf16_macs, "bf16"),
    ];
    // Arithmetic without instructions on this machine has no limit.
    let rates = arithmetic.iter().filter(|(macs, _)| *macs > 0.0).enumerate().map(|(i, (macs, ty))| {
        format!(", {:.0}{} {ty}", 2.0 * macs / 1e9, if i == 0 { " GFLOP/s" } else { "" })
    });
    output::line(&format!(
        "limits, {runs}: {:.1} GB/s{}",
        limits.read_bandwidth / 1e9,
        rates.collect::<String>()
    ))
}

/// Prints the speed-up of packed weights over the same weights as floats, one line per format.
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

/// Prints one line, preceded by the kernel's name if it differs from the last one.
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
