//! What a device can do at best, measured by two shaders.

use crate::buffers::{Buffer, largest_binding};
use crate::commands::{Binding, Commands};
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::Pipeline;
use crate::shader::Shader;
use latent_backend::Limits;
use std::sync::Arc;

const READ: &str = include_str!("limits/read.wgsl");
const MULTIPLY: &str = include_str!("limits/multiply.wgsl");

/// Workgroups of 256 invocations.
const GROUPS: u32 = 1024;
/// Bytes that are read, at most: more than caches hold.
const BYTES: u64 = 256 << 20;
/// Multiply-accumulates of an invocation.
const MACS: usize = 4096;
/// Each is done so often; the best counts.
const RUNS: usize = 5;

/// Measures bandwidth and f32 arithmetic. Products of quantized weights are computed in f32 here, so that integers have its speed.
pub(crate) fn measure(device: &Arc<Device>) -> Result<Limits, GpuError> {
    let bytes = largest_binding(&device.limits).min(BYTES);
    let source = Buffer::new(device, "a measurement", bytes)?;
    let results = Buffer::new(device, "a measurement", 4 * 256 * u64::from(GROUPS))?;
    let read = device.pipeline(&Shader::new("read", READ).count("VECTORS", bytes as usize / 16))?;
    let multiply = device.pipeline(&Shader::new("multiply", MULTIPLY).count("MACS", MACS))?;
    let best = |pipeline: &Arc<Pipeline>, bindings: &dyn Fn() -> Vec<Binding>| -> Result<f64, GpuError> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let mut commands = Commands::new(device);
            commands.call(pipeline, bindings(), &[GROUPS], [GROUPS, 1, 1]);
            best = best.min(commands.seconds()?);
        }
        Ok(best)
    };
    let read_bandwidth = bytes as f64 / best(&read, &|| vec![(&source).into(), (&results).into()])?;
    let macs = 256.0 * f64::from(GROUPS) * MACS as f64;
    let f32_macs = macs / best(&multiply, &|| vec![(&results).into()])?;
    Ok(Limits {
        read_bandwidth,
        int8_macs: f32_macs,
        f32_macs,
        f16_macs: 0.0,
        bf16_macs: 0.0,
        amx_int8_macs: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_a_machine() {
        let Some(device) = crate::testing::device() else { return };
        let limits = measure(&device).unwrap();
        // between a slow core that others use and the largest card there will be for a while
        assert!((1e7..1e14).contains(&limits.read_bandwidth), "{limits:?}");
        assert!((1e6..1e16).contains(&limits.f32_macs), "{limits:?}");
    }
}
