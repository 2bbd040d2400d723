//! Speed of products compared with the limits of the machine: `cargo run --release -p latent-marlin
//! --example perf [THREADS] [K] [N] [GROUP] [every]`.
//!
//! The limits are the measured read bandwidth, the peaks of f32 and bf16 arithmetic, and the
//! minimum time of decoding to f32 followed by a product. A fifth argument selects every kernel.
//! Weights are copied until they exceed every cache.
#![allow(clippy::print_stdout, reason = "an example")]

use latent_kernels::{peak, read_all};
use latent_marlin::half::{bf16, f16};
use latent_marlin::{Activations, Input, Kernel, Marlin, Options, Plan, QuantType, Scales, Shape, Weight};
use latent_threads::ThreadPool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are read in turn: more than caches hold, so that they come from memory.
const MEMORY: usize = 256 << 20;

/// Time to measure each figure.
const TIME: Duration = Duration::from_millis(400);

/// Seconds of the shortest of some calls, and of the median.
fn timed(mut call: impl FnMut(usize)) -> (f64, f64) {
    // The first calls are slower: they allocate memory and wake threads.
    (0..3).for_each(&mut call);
    let (begin, mut seconds) = (Instant::now(), Vec::new());
    while seconds.len() < 5 || begin.elapsed() < TIME {
        let start = Instant::now();
        call(seconds.len());
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[seconds.len() / 2])
}

/// Bytes per second that all threads together read.
fn bandwidth(threads: usize) -> f64 {
    let Ok(mut pool) = ThreadPool::new(threads) else { return f64::NAN };
    let numbers: Vec<u64> = (0..MEMORY as u64 / 8).collect();
    let sum = AtomicU64::new(0);
    let (_, median) = timed(|_| {
        pool.run(&|worker| {
            let share = &numbers[worker.share(numbers.len(), 4096)];
            sum.fetch_add(read_all(share), Ordering::Relaxed);
        });
    });
    // The sum must be used, or the compiler could omit the reads.
    std::hint::black_box(sum.load(Ordering::Relaxed));
    MEMORY as f64 / median
}

/// One of several copies of a weight. Products use them in turn, so that no copy stays in a cache.
struct WeightCopy {
    words: Vec<u32>,
    scales: Vec<f16>,
    zeros: Vec<u8>,
}

impl WeightCopy {
    fn new(shape: Shape, seed: u32) -> WeightCopy {
        let groups = shape.groups() * shape.n;
        let number = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761);
        WeightCopy {
            words: (0..shape.k / 8 * shape.n).map(number).collect(),
            scales: (0..groups).map(|i| f16::from_f32(0.01 + i as f32 % 7.0 / 256.0)).collect(),
            zeros: (0..groups).map(|i| (number(i) >> 28) as u8).collect(),
        }
    }

    fn weight(&self, quant: QuantType, shape: Shape) -> Weight<'_> {
        let zeros = (quant == QuantType::Int4).then_some(&self.zeros[..]);
        Weight::new(quant, shape, &self.words, Scales::F16(&self.scales), zeros)
            .expect("a weight of the shape")
    }
}

/// The measured threads, weights and inputs.
struct MarlinBench {
    marlin: Marlin,
    shape: Shape,
    copies: Vec<WeightCopy>,
    /// Bytes per second, and f32 and bf16 operations per second of all threads.
    limits: (f64, f64, f64),
    x: Vec<f32>,
    halves: Vec<bf16>,
}

/// How inputs are given: f32, bf16, and f32 that may be rounded to int8.
const INPUTS: [&str; 3] = ["f32", "bf16", "int8"];

impl MarlinBench {
    /// The median time of a product, and the kernel.
    fn product(
        &mut self,
        (quant, m): (QuantType, usize),
        inputs: &str,
        kernel: Option<Kernel>,
    ) -> Result<(f64, &'static str), latent_marlin::Error> {
        let MarlinBench { marlin, shape, copies, x, halves, .. } = self;
        let len = m * shape.k;
        let input = if inputs == "bf16" { Input::Bf16(&halves[..len]) } else { Input::F32(&x[..len]) };
        let activations = if inputs == "int8" { Activations::Int8 } else { Activations::AsGiven };
        let slices = (kernel == Some(Kernel::Striped)).then_some(4);
        let options = Options { kernel, slices, activations, ..Options::default() };
        let (mut y, mut problem) = (vec![0.0; m * shape.n], Ok(()));
        let weights: Vec<Weight<'_>> = copies.iter().map(|copy| copy.weight(quant, *shape)).collect();
        let (_, median) = timed(|call| {
            problem = marlin.multiply_with(&options, &weights[call % weights.len()], input, m, &mut y);
        });
        problem?;
        Ok((median, Plan::new(&options, *shape, m, inputs == "bf16")?.chosen().name))
    }

    fn print(
        &self,
        (quant, m): (QuantType, usize),
        inputs: &str,
        (median, kernel): (f64, &str),
        decoded: f64,
    ) {
        let (read, f32_peak, bf16_peak) = self.limits;
        let Shape { k, n, .. } = self.shape;
        let bytes = self.copies[0].weight(quant, self.shape).bytes() as f64;
        let flops = 2.0 * (m * k * n) as f64;
        println!(
            "{:<9} m={m:<4} {inputs:<5} {kernel:<30} {:>9.1} µs {:>5.1} GB/s {:>4.0} % {:>6.0} GFLOP/s {:>4.0} % of f32, {:>4.0} % of bf16, {:>5.2} × decoding first",
            quant.name(),
            1e6 * median,
            bytes / median / 1e9,
            100.0 * bytes / median / read,
            flops / median / 1e9,
            100.0 * flops / median / f32_peak,
            100.0 * flops / median / bf16_peak,
            decoded / median,
        );
    }

    /// The minimum time of decoding to f32 and then multiplying. The product reads the decoded
    /// weight again, so it takes at least the time of reading it, or of f32 arithmetic if that is
    /// longer. Prints the time of decoding.
    fn decode_first(
        &mut self,
        quant: QuantType,
    ) -> Result<impl Fn(usize) -> f64 + use<>, latent_marlin::Error> {
        let MarlinBench { marlin, shape, copies, limits, .. } = self;
        let Shape { k, n, .. } = *shape;
        let bytes = copies[0].weight(quant, *shape).bytes() as f64;
        let weights: Vec<Weight<'_>> = copies.iter().map(|copy| copy.weight(quant, *shape)).collect();
        let (mut floats, mut halves) = (vec![0.0f32; k * n], vec![f16::ZERO; k * n]);
        let mut problem = Ok(());
        let (_, to_f32) = timed(|call| {
            problem = marlin.dequantize(&weights[call % weights.len()], &mut floats);
        });
        problem?;
        let mut problem = Ok(());
        let (_, to_f16) = timed(|call| {
            problem = marlin.dequantize_f16(&weights[call % weights.len()], &mut halves);
        });
        problem?;
        for (name, seconds, size) in [("f32", to_f32, 4), ("f16", to_f16, 2)] {
            let moved = bytes + (size * k * n) as f64;
            println!(
                "{:<9} decoded to {name}: {:>9.1} µs, {:>5.1} GB/s read and written, {:.2} ns per weight",
                quant.name(),
                1e6 * seconds,
                moved / seconds / 1e9,
                1e9 * seconds / (k * n) as f64
            );
        }
        let (read, f32_peak, _) = *limits;
        Ok(move |m| to_f32 + (4.0 * (k * n) as f64 / read).max(2.0 * (m * k * n) as f64 / f32_peak))
    }
}

fn main() -> Result<(), latent_marlin::Error> {
    let number = |at, other| std::env::args().nth(at).and_then(|word| word.parse().ok()).unwrap_or(other);
    let (threads, k, n, group) = (number(1, 1), number(2, 4096), number(3, 4096), number(4, 32));
    let every = std::env::args().nth(5).is_some();
    let shape = Shape { k, n, group };
    let read = bandwidth(threads);
    let peak = peak(latent_kernels::features().tier());
    let limits = (read, 2.0 * peak.f32 * threads as f64, 2.0 * peak.bf16 * threads as f64);
    println!(
        "[{k}, {n}], group {group}, {threads} threads: {:.1} GB/s, {:.0} GFLOP/s f32, {:.0} bf16",
        read / 1e9,
        limits.1 / 1e9,
        limits.2 / 1e9
    );
    // As many rows as the largest product below.
    let x: Vec<f32> = (0..512 * k).map(|i| (i % 251) as f32 / 251.0 - 0.5).collect();
    let halves = x.iter().map(|v| bf16::from_f32(*v)).collect();
    // A weight takes k · n / 2 bytes, so the copies take `MEMORY` together.
    let copies = (0..(2 * MEMORY / (k * n)).max(1)).map(|i| WeightCopy::new(shape, i as u32)).collect();
    let mut bench = MarlinBench { marlin: Marlin::new(threads)?, shape, copies, limits, x, halves };
    for quant in QuantType::ALL {
        let decoded = bench.decode_first(quant)?;
        for m in [1, 4, 8, 16, 64, 512] {
            for inputs in INPUTS {
                for kernel in [None, Some(Kernel::Gemm), Some(Kernel::Fused), Some(Kernel::Striped)] {
                    if every || kernel.is_none() {
                        let found = bench.product((quant, m), inputs, kernel)?;
                        bench.print((quant, m), inputs, found, decoded(m));
                    }
                }
            }
        }
    }
    println!("read bandwidth afterwards: {:.1} GB/s", bandwidth(threads) / 1e9);
    Ok(())
}
