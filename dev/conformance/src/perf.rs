//! Measures every kernel at the sizes of real models and compares it with the machine's limits.

use crate::backend::{CaseBackend, CaseKernel};
use crate::case::{CaseOperands, KernelCase};
use crate::filter::KernelFilter;
use crate::product::ProductCase;
use crate::work::CallCost;
use latent_types::Arithmetic;
use serde::Serialize;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The machine's limits for the number of threads of a measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MachinePeaks {
    /// Bytes per second from memory.
    pub read_bandwidth: f64,
    /// Multiply-adds of 8-bit integers per second.
    pub int8_macs: f64,
    /// Multiply-adds of f32 per second.
    pub f32_macs: f64,
    /// The same of f16; 0 if the processor has no f16 arithmetic.
    pub f16_macs: f64,
    /// The same of bf16, in AMX tiles or vectors; 0 if no kernel uses them here.
    pub bf16_macs: f64,
}

/// Options of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct PerfOptions {
    /// Number of threads that run the kernel concurrently, each on its own copies of the operands.
    pub threads: usize,
    /// Total bytes of weights or cached rows. Must exceed the last-level cache.
    pub memory: usize,
    /// Measuring time per case.
    pub time: Duration,
    /// Measure all kernels of a case instead of only the one of the highest available level.
    pub all: bool,
}

/// The speed of one case with one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Name of the operation.
    pub operation: &'static str,
    pub case: String,
    pub kernel: String,
    /// Level that the kernel is compiled for.
    pub level: &'static str,
    pub threads: usize,
    /// Number of timed calls of all threads.
    pub calls: usize,
    /// Median microseconds per call.
    pub micros: f64,
    /// Gigabytes per second of all threads.
    pub gb_per_s: f64,
    /// Billions of multiplications and additions per second of all threads.
    pub gflop_per_s: f64,
    /// The binding limit: `memory` or `arithmetic`. `None` if operands come from a CPU cache and
    /// arithmetic is not the bottleneck.
    pub bound: Option<&'static str>,
    /// Fraction of that limit: minimum time ÷ measured time.
    pub of_limit: Option<f64>,
    /// The limits, measured shortly before.
    pub limits: MachinePeaks,
    /// The case, if it is a product.
    #[serde(skip)]
    pub product: Option<ProductCase>,
}

/// Minimum number of samples for the median.
const SAMPLES: usize = 5;

/// Minimum duration of a sample.
// Long enough that the resolution of the clock does not matter.
const SAMPLE: Duration = Duration::from_millis(1);

/// Measures all `cases` that pass `filter`. `limits` returns the machine's limits for a level and a
/// number of threads. `sink` receives each measurement or error, and returns whether to continue.
pub fn perf(
    backend: &dyn CaseBackend,
    cases: &[KernelCase],
    filter: &KernelFilter,
    options: &PerfOptions,
    limits: &mut dyn FnMut(&'static str, usize) -> MachinePeaks,
    sink: &mut dyn FnMut(Result<Measurement, String>) -> bool,
) {
    let kernels = backend.kernels();
    let levels: Vec<&str> = backend.levels().iter().map(|level| level.name).collect();
    let rank = |kernel: &CaseKernel| levels.iter().position(|level| *level == kernel.level);
    for case in cases {
        let name = case.name();
        let mut serving: Vec<&CaseKernel> = kernels
            .iter()
            .filter(|kernel| {
                kernel.missing.is_none() && backend.serves(kernel, case) && filter.lets(kernel, &name)
            })
            .collect();
        if !options.all {
            // Of equal ranks take the first. Later ones are variants without some instruction.
            let best = serving.iter().map(|kernel| rank(kernel)).max();
            serving.retain(|kernel| Some(rank(kernel)) == best);
            serving.truncate(1);
        }
        if serving.is_empty() {
            continue;
        }
        let work = case.work();
        // The tier limit is process-wide, so several threads would wait for each other.
        let threads = if case.limits_process() { 1 } else { options.threads.max(1) };
        // Enough copies that each is evicted from the caches before it is read again.
        let copies = if work.from_memory { (options.memory as f64 / work.bytes).ceil() as usize } else { 1 };
        let operands = case.operands(copies.max(threads));
        for kernel in serving {
            let limits = limits(kernel.level, threads);
            let timed = time(backend, kernel, case, &operands, threads, copies.max(threads), options.time);
            let arithmetic = backend.arithmetic(kernel, case).unwrap_or(work.arithmetic);
            let work = CallCost { arithmetic, ..work };
            let measured = timed
                .map(|timed| measurement(case, &name, kernel, &work, threads, timed, limits))
                .map_err(|problem| format!("{} {name}: {problem}", kernel.name));
            if !sink(measured) {
                return;
            }
        }
    }
}

struct ThreadTimings {
    calls: usize,
    /// Median seconds per call of each thread.
    seconds: Vec<f64>,
}

fn time(
    backend: &dyn CaseBackend,
    kernel: &CaseKernel,
    case: &KernelCase,
    operands: &CaseOperands,
    threads: usize,
    copies: usize,
    length: Duration,
) -> Result<ThreadTimings, String> {
    let mut jobs = Vec::new();
    for _ in 0..threads {
        jobs.push(backend.prepare(kernel, case, operands)?);
    }
    let start = Barrier::new(threads);
    let found: Vec<Result<(usize, f64), String>> = std::thread::scope(|scope| {
        let members: Vec<_> = jobs
            .into_iter()
            .enumerate()
            .map(|(member, mut job)| {
                let start = &start;
                scope.spawn(move || {
                    // Each thread starts at its own share of the copies.
                    let mut copy = member * copies / threads;
                    let mut time = |calls: usize| {
                        copy += calls;
                        job.time(copy - calls..copy)
                    };
                    // The first call allocates scratch memory. The second one determines the calls
                    // per sample.
                    let warm = time(1).and_then(|_| time(1));
                    // Before the `?`: a thread that returned early would leave the others waiting
                    // forever.
                    start.wait();
                    // A call that is too short for the clock counts as 1 ns.
                    let calls = (SAMPLE.as_secs_f64() / warm?.max(1e-9)).ceil() as usize;
                    let begin = Instant::now();
                    let mut samples = Vec::new();
                    while samples.len() < SAMPLES || begin.elapsed() < length {
                        samples.push(time(calls)? / calls as f64);
                    }
                    Ok((calls * samples.len(), median(&mut samples)))
                })
            })
            .collect();
        let panicked = |_| Err("a thread panicked".to_owned());
        members.into_iter().map(|member| member.join().unwrap_or_else(panicked)).collect()
    });
    let found: Vec<(usize, f64)> = found.into_iter().collect::<Result<_, _>>()?;
    let calls = found.iter().map(|(calls, _)| calls).sum();
    Ok(ThreadTimings { calls, seconds: found.into_iter().map(|(_, seconds)| seconds).collect() })
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn measurement(
    case: &KernelCase,
    name: &str,
    kernel: &CaseKernel,
    work: &CallCost,
    threads: usize,
    timed: ThreadTimings,
    limits: MachinePeaks,
) -> Measurement {
    // Threads may differ in speed, so their rates are added and times follow from the sum.
    let rate: f64 = timed.seconds.iter().map(|seconds| 1.0 / seconds).sum();
    let memory = if work.from_memory { work.bytes / limits.read_bandwidth } else { 0.0 };
    let macs = match work.arithmetic {
        Arithmetic::Int8 => limits.int8_macs,
        Arithmetic::F32 => limits.f32_macs,
        Arithmetic::F16 => limits.f16_macs,
        Arithmetic::Bf16 => limits.bf16_macs,
    };
    // `flops` counts a multiply-add as two operations.
    let arithmetic = work.flops / 2.0 / macs;
    // Row-wise operations run in caches, so the limits do not apply.
    let limited = !case.limits_process();
    Measurement {
        operation: case.operation(),
        case: name.to_owned(),
        kernel: kernel.name.clone(),
        level: kernel.level,
        threads,
        calls: timed.calls,
        micros: 1e6 * threads as f64 / rate,
        gb_per_s: work.bytes * rate / 1e9,
        gflop_per_s: work.flops * rate / 1e9,
        bound: limited.then_some(if memory >= arithmetic { "memory" } else { "arithmetic" }),
        of_limit: limited.then_some(memory.max(arithmetic) * rate),
        limits,
        product: if let KernelCase::Product(case) = case { Some(*case) } else { None },
    }
}
