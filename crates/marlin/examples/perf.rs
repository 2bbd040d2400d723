//! How fast products are, beside what the machine allows: `cargo run --release -p latent-marlin --example perf [THREADS] [K] [N] [GROUP]`.
//!
//! M = 1 beside the measured read bandwidth, M = 16 beside decoding to f32 and multiplying then, M = 512 beside the peak of bf16 or f32 arithmetic.
//! Weights are copied until they exceed every cache.
#![allow(clippy::print_stdout, reason = "an example")]

use latent_kernels::{peak, read_all};
use latent_marlin::half::{bf16, f16};
use latent_marlin::{Input, Kernel, Marlin, Options, Plan, QuantType, Scales, Shape, Weight};
use latent_threads::ThreadPool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are read in turn: more than caches hold.
const MEMORY: usize = 256 << 20;

/// Time per figure.
const TIME: Duration = Duration::from_millis(400);

/// The shortest of some calls in seconds, and the median.
fn timed(mut call: impl FnMut(usize)) -> (f64, f64) {
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

/// Bytes per second that threads read together.
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
    std::hint::black_box(sum.load(Ordering::Relaxed));
    MEMORY as f64 / median
}

/// One copy of a weight.
struct Copy {
    words: Vec<u32>,
    scales: Vec<f16>,
    zeros: Vec<u8>,
}

impl Copy {
    fn new(shape: Shape, seed: u32) -> Copy {
        let groups = shape.groups() * shape.n;
        let number = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761);
        Copy {
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

fn main() -> Result<(), latent_marlin::Error> {
    let number = |at, other| std::env::args().nth(at).and_then(|word| word.parse().ok()).unwrap_or(other);
    let (threads, k, n, group) = (number(1, 1), number(2, 4096), number(3, 4096), number(4, 32));
    let shape = Shape { k, n, group };
    let mut marlin = Marlin::new(threads)?;
    let copies: Vec<Copy> = (0..(2 * MEMORY / (k * n)).max(1)).map(|i| Copy::new(shape, i as u32)).collect();
    let read = bandwidth(threads);
    let peak = peak(latent_kernels::features().tier());
    let (f32_peak, bf16_peak) = (2.0 * peak.f32 * threads as f64, 2.0 * peak.bf16 * threads as f64);
    println!(
        "[{k}, {n}], group {group}, {threads} threads: {:.1} GB/s, {:.0} GFLOP/s f32, {:.0} bf16",
        read / 1e9,
        f32_peak / 1e9,
        bf16_peak / 1e9
    );
    let x: Vec<f32> = (0..512 * k).map(|i| (i % 251) as f32 / 251.0 - 0.5).collect();
    let brains: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    for quant in QuantType::ALL {
        for m in [1, 2, 4, 8, 16, 64, 512] {
            let mut y = vec![0.0; m * n];
            for (name, input) in [("f32", Input::F32(&x[..m * k])), ("bf16", Input::Bf16(&brains[..m * k]))] {
                for kernel in [None, Some(Kernel::Gemm), Some(Kernel::Fused), Some(Kernel::Striped)] {
                    if kernel.is_some() && std::env::args().nth(5).is_none() {
                        continue;
                    }
                    let slices = (kernel == Some(Kernel::Striped)).then_some(4);
                    let options = Options { kernel, slices, ..Options::default() };
                    let mut problem = Ok(());
                    let (_, median) = timed(|call| {
                        let weight = copies[call % copies.len()].weight(quant, shape);
                        problem = marlin.multiply_with(&options, &weight, input, m, &mut y);
                    });
                    problem?;
                    let plan = Plan::new(&options, shape, m, name == "bf16")?;
                    let (bytes, flops) =
                        (copies[0].weight(quant, shape).bytes() as f64, 2.0 * (m * k * n) as f64);
                    println!(
                        "{:<9} m={m:<4} {name:<5} {:<30} {:>9.1} µs {:>5.1} GB/s {:>4.0} % {:>6.0} GFLOP/s {:>4.0} % of f32, {:>4.0} % of bf16",
                        quant.name(),
                        plan.chosen().name,
                        1e6 * median,
                        bytes / median / 1e9,
                        100.0 * bytes / median / read,
                        flops / median / 1e9,
                        100.0 * flops / median / f32_peak,
                        100.0 * flops / median / bf16_peak,
                    );
                }
            }
        }
    }
    Ok(())
}
