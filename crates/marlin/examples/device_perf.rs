//! Products on a GPU: measures each kernel at several shapes, and prints which one is chosen.
//!
//! ```text
//! cargo run --release -p latent-marlin --features gpu --example device_perf -- [gpu:N]
//! ```
#![allow(missing_docs, clippy::print_stdout, reason = "a program that prints figures")]

use latent_marlin::half::f16;
use latent_marlin::{Error, GemmDevice, Input, Kernel, Options, Packed, QuantType, ResidentWeight, Shape};
use std::time::Instant;

/// K and N of projections in models.
const SHAPES: [(usize, usize); 4] = [(4096, 4096), (2048, 8192), (7168, 576), (14_336, 4096)];
const ROWS: [usize; 7] = [1, 4, 8, 12, 32, 128, 1024];

/// Random codes; scales of 1 / 64.
fn packed(quant: QuantType, shape: Shape) -> Packed {
    let mut state = 1u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.rotate_left(13)
    };
    let groups = shape.groups() * shape.n;
    Packed {
        quant,
        shape,
        words: (0..shape.k / 8 * shape.n).map(|_| word()).collect(),
        scales: vec![f16::from_f32(1.0 / 64.0); groups],
        zeros: vec![7; if quant == QuantType::Int4 { groups } else { 0 }],
    }
}

/// Microseconds of a product: the fastest of three measurements. Each runs many products, which
/// take some milliseconds together, so that the clock is precise enough.
fn micros(weight: &ResidentWeight, options: &Options, m: usize, halves: bool) -> Result<f64, Error> {
    let Shape { k, n, .. } = weight.shape();
    let device = weight.device();
    let ones = vec![f16::ONE; m * k];
    let x = device.rows(Input::F16(&ones), m, k)?;
    let x = if halves { x } else { x.converted(false)? };
    let mut out = vec![0.0; m * n];
    let mut run = |count: usize| -> Result<f64, Error> {
        let start = Instant::now();
        let mut last = weight.multiply(options, &x, None)?;
        for _ in 1..count {
            last = weight.multiply(options, &x, None)?;
        }
        last.read(&mut out)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first call compiles the shader, so the faster of two is taken.
    let once = run(1)?.min(run(1)?);
    // Reading the result takes as long for one product as for many, so the difference between two
    // runs is the time of products alone.
    let count = ((0.02 / once) as usize).clamp(2, 200);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let (short, long) = (run(1)?, run(count + 1)?);
        best = best.min((long - short) / count as f64);
    }
    Ok(1e6 * best)
}

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gpu".to_owned());
    let Some(device) = GemmDevice::named(&name)? else {
        println!("{name} is the CPU: see the example perf");
        return Ok(());
    };
    println!("{} ({})", device.name(), device.adapter());
    println!("     K      N    M inputs    fused     gemm  striped  µs; chosen, GB/s of the weight, GFLOP/s");
    for (k, n) in SHAPES {
        let packed = packed(QuantType::Int4, Shape { k, n, group: 128 });
        let weight = device.upload(&packed.weight()?)?;
        for m in ROWS {
            for halves in [false, true] {
                let plan = weight.plan(&Options::default(), m)?;
                let mut times = Vec::new();
                for kernel in [Kernel::Fused, Kernel::Gemm, Kernel::Striped] {
                    // The fused kernel reads the weight again for every few rows: with hundreds of
                    // rows it only takes long, and tells nothing new.
                    let skipped = kernel == Kernel::Fused && m > 128;
                    let options = Options { kernel: Some(kernel), ..Options::default() };
                    times.push(if skipped { f64::NAN } else { micros(&weight, &options, m, halves)? });
                }
                let [fused, gemm, striped] = times[..] else { continue };
                let chosen = match plan.kernel {
                    Kernel::Fused => fused,
                    Kernel::Gemm => gemm,
                    Kernel::Striped => striped,
                };
                let inputs = if halves { "f16" } else { "f32" };
                println!(
                    "{k:6} {n:6} {m:4} {inputs:>6} {fused:8.1} {gemm:8.1} {striped:8.1}  {} × {}, {:.0}, {:.0}",
                    plan.name,
                    plan.slices,
                    weight.bytes() as f64 / chosen / 1e3,
                    2e-3 * (m * k * n) as f64 / chosen,
                );
            }
        }
    }
    Ok(())
}
