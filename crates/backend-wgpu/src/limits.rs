//! Peak rates of a device, each measured by a shader.

use crate::buffers::{Buffer, largest_binding};
use crate::commands::{Commands, ShaderBinding};
use crate::coop_matrix::CoopMatrix;
use crate::device::Device;
use crate::error::GpuError;
use crate::matrix_trial::multiplies;
use crate::pipeline::ShaderPipeline;
use crate::shader::Shader;
use latent_backend::PeakRates;
use std::fmt::Write;
use std::sync::Arc;

const READ: &str = include_str!("limits/read.wgsl");
const MULTIPLY: &str = include_str!("limits/multiply.wgsl");
const DOT: &str = include_str!("limits/dot.wgsl");
const MATRICES: &str = include_str!("limits/matrices.wgsl");

/// Number of workgroups.
const GROUPS: u32 = 1024;
/// Invocations per workgroup, except with cooperative matrices.
const THREADS: u32 = 256;
/// Maximum bytes that are read: for devices with their own memory, and for devices that share the
/// host's.
// More than caches hold, which have up to 128 MiB.
const BYTES: [u64; 2] = [1 << 30, 256 << 20];
/// Minimum bytes that are read if memory is short.
const MIN_BYTES: u64 = 16 << 20;
/// Multiply-accumulates of an invocation per iteration of the loops in `multiply.wgsl` and
/// `dot.wgsl`.
const MACS: [f64; 2] = [16.0, 32.0];
/// Independent sums per subgroup.
const SUMS: usize = 8;
/// Minimum time of a measurement.
// The start and end of workgroups must be negligible: a launch of 36 µs on a large GPU measured too
// little.
const SECONDS: f64 = 4e-3;
/// Runs of each measurement. The best one counts.
const RUNS: usize = 5;

/// Measures the bandwidth, and each kind of arithmetic that shaders here use.
pub(crate) fn measure(device: &Arc<Device>) -> Result<PeakRates, GpuError> {
    // Every invocation writes its result, so that the compiler cannot remove the loop.
    let results = Buffer::new(device, "a measurement", u64::from(4 * THREADS * GROUPS))?;
    let rate = |shader: &Shader, work: f64| speed(device, &device.pipeline(shader)?, &[&results], work);
    let threads = f64::from(THREADS * GROUPS);
    let description = &device.description;
    let mut f32_macs = rate(&multiply(false), MACS[0] * threads)?;
    let mut f16_macs = if description.f16 { rate(&multiply(true), MACS[0] * threads)? } else { 0.0 };
    // Browsers may lack packed dot products, and products there do not use them.
    let int8_macs =
        if description.in_page() { f32_macs } else { rate(&Shader::new("dot", DOT), MACS[1] * threads)? };
    for matrix in description.coop_matrices.iter().filter(|matrix| multiplies(device, **matrix)) {
        let pipeline = device.compiled("matrices", matrices(*matrix))?;
        let macs = speed(device, &pipeline, &[&results], macs_of(*matrix) * f64::from(GROUPS))?;
        let best = if matrix.f16 { &mut f16_macs } else { &mut f32_macs };
        *best = best.max(macs);
    }
    Ok(PeakRates {
        read_bandwidth: bandwidth(device, &results)?,
        int8_macs,
        f32_macs,
        f16_macs,
        // WGSL has no bf16, and AMX is an instruction set of CPUs.
        bf16_macs: 0.0,
        amx_int8_macs: 0.0,
    })
}

/// The shader that multiplies vectors of f32 or f16.
fn multiply(f16: bool) -> Shader {
    let element = if f16 { "alias Element = f16;\n" } else { "alias Element = f32;\n" };
    Shader { f16, ..Shader::new("multiply", MULTIPLY).after(element) }
}

/// Measures bytes read per second.
fn bandwidth(device: &Arc<Device>, results: &Buffer) -> Result<f64, GpuError> {
    let shares = device.description.shares_memory();
    let most = |bytes: u64| largest_binding(&device.limits).min(bytes);
    let mut bytes = most(BYTES[usize::from(shares)]);
    // A loaded model may leave little memory.
    let source = loop {
        match Buffer::new(device, "a measurement", bytes) {
            Err(GpuError::OutOfMemory { .. }) if bytes > MIN_BYTES => bytes /= 2,
            made => break made?,
        }
    };
    let read = Shader::new("read", READ).count("VECTORS", source.bytes() as usize / 16);
    speed(device, &device.pipeline(&read)?, &[&source, results], source.bytes() as f64)
}

/// Work per second of a shader that does `work` per iteration of its loop, in the best of several
/// runs.
fn speed(
    device: &Arc<Device>,
    pipeline: &Arc<ShaderPipeline>,
    buffers: &[&Buffer],
    work: f64,
) -> Result<f64, GpuError> {
    let run = |turns: u32| {
        let mut commands = Commands::new(device);
        commands.call(
            pipeline,
            buffers.iter().map(|b| ShaderBinding::from(*b)),
            &[GROUPS, turns],
            [GROUPS, 1, 1],
        );
        commands.seconds()
    };
    // Four times as many iterations until a run takes long enough. The bound ends the loop if the
    // clock does not advance.
    let (mut turns, mut best) = (1, run(1)?);
    while best < SECONDS && turns < 1 << 24 {
        turns *= 4;
        best = run(turns)?;
    }
    for _ in 1..RUNS {
        best = best.min(run(turns)?);
    }
    Ok(work * f64::from(turns) / best)
}

/// Multiply-accumulates of a workgroup per iteration of the loop.
fn macs_of(matrix: CoopMatrix) -> f64 {
    (CoopMatrix::SUBGROUPS * SUMS * matrix.side.pow(3)) as f64
}

/// The shader for cooperative matrices.
fn matrices(matrix: CoopMatrix) -> String {
    let mut text = String::from(matrix.directives());
    text.push_str(&matrix.types());
    // Writing to a string does not fail.
    let _ =
        writeln!(text, "const THREADS: u32 = {}u;\nalias Element = {};", matrix.threads(), matrix.element());
    // Each sum is a separate variable, since a driver may place an array of them in memory instead
    // of registers.
    let each = |line: &dyn Fn(usize) -> String| (0..SUMS).map(line).collect::<String>();
    // A sum waits for its own last multiplication, so several sums hide the latency.
    let begin = each(&|i| format!("  var sum_{i} = coopLoadT<Sums>(&sums[mine], SIDE);\n"));
    let multiply = each(&|i| format!("    sum_{i} = coopMultiplyAdd(a, b, sum_{i});\n"));
    let end = each(&|i| {
        format!(
            "  coopStoreT(sum_{i}, &sums[mine], SIDE);\n  workgroupBarrier();\n  total += sums[mine + member];\n  workgroupBarrier();\n"
        )
    });
    let whole = [("// BEGIN\n", begin), ("// MULTIPLY\n", multiply), ("// END\n", end)];
    text + &whole.iter().fold(MATRICES.to_owned(), |text, (mark, lines)| text.replace(mark, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::tests::translate::translate;

    #[test]
    fn measured_rates_are_plausible() {
        let Some(device) = crate::testing::device() else { return };
        let limits = measure(&device).unwrap();
        // From a slow, busy core to a card larger than any of today.
        assert!((1e7..1e14).contains(&limits.read_bandwidth), "{limits:?}");
        assert!((1e6..1e16).contains(&limits.f32_macs), "{limits:?}");
        assert!((1e6..1e17).contains(&limits.int8_macs), "{limits:?}");
        let halves = device.description.f16;
        assert!(if halves { (1e6..1e17).contains(&limits.f16_macs) } else { limits.f16_macs == 0.0 });
    }

    #[test]
    fn all_measuring_shaders_translate() {
        let read = Shader::new("read", READ).count("VECTORS", 1 << 20);
        for shader in [read, multiply(false), multiply(true), Shader::new("dot", DOT)] {
            let [metal, direct3d] = translate(shader.name, &shader.text());
            assert!(metal.contains("kernel void main_") && direct3d.contains("numthreads"));
        }
        for (side, f16) in [(8, false), (8, true), (16, true), (16, false)] {
            for subgroup in [8, 32, 64] {
                let [metal, _] = translate("matrices", &matrices(CoopMatrix { side, f16, subgroup }));
                assert!(metal.contains("simdgroup_multiply_accumulate"), "{side} {f16} {subgroup}");
            }
        }
    }
}
