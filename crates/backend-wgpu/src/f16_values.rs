//! Conversion of f16 to f32 in shaders.

use crate::buffers::Buffer;
use crate::commands::{Commands, ShaderBinding};
use crate::device::Device;
use crate::error::GpuError;
use crate::shader::Shader;
use std::sync::Arc;

const BY_INTEGERS: &str = include_str!("f16_values/by_integers.wgsl");
const BY_DEVICE: &str = include_str!("f16_values/by_device.wgsl");
const PROBE: &str = include_str!("f16_values/probe.wgsl");

/// All f16.
const COUNT: u32 = 1 << 16;

/// How a device does it. WGSL lets devices take subnormal f16 for zero, and scales of small weights are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum F16Values {
    /// With integers: a dozen instructions, exact everywhere.
    ByIntegers,
    /// With the device's own instruction, where it is exact.
    ByDevice,
}

impl F16Values {
    /// The function `f16_value(bits)`, for 16 bits with zeros or anything above them.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            F16Values::ByIntegers => BY_INTEGERS,
            F16Values::ByDevice => BY_DEVICE,
        }
    }

    /// What is exact on a device: its own instruction, if that agrees for every f16, which is tried once. A device that fails
    /// at it will fail again when it is used.
    pub(crate) fn of(device: &Arc<Device>) -> F16Values {
        // nothing runs there; GPUs are exact, as far as is known
        let exact = device.hollow || device.exact_f16.get().copied().unwrap_or_else(|| tried(device));
        if exact { F16Values::ByDevice } else { F16Values::ByIntegers }
    }
}

/// Tries, and keeps the answer. Nothing is locked meanwhile: in a page the device is waited for by others too.
fn tried(device: &Arc<Device>) -> bool {
    match agrees(device) {
        Ok(exact) => *device.exact_f16.get_or_init(|| exact),
        Err(_) => false,
    }
}

fn agrees(device: &Arc<Device>) -> Result<bool, GpuError> {
    let wrong = Buffer::new(device, "a probe", 4 * u64::from(COUNT))?;
    let probe = device.pipeline(&Shader::new("probe_f16", PROBE).after(BY_INTEGERS))?;
    let mut commands = Commands::new(device);
    commands.call(&probe, [ShaderBinding::from(&wrong)], &[COUNT], [COUNT / 256, 1, 1]);
    commands.submit(&[])?;
    let found = wrong.read("a probe", 0..4 * u64::from(COUNT))?;
    Ok(found.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::tests::translate::translate;

    #[test]
    fn the_probe_translates() {
        translate("probe_f16", &Shader::new("probe_f16", PROBE).after(BY_INTEGERS).text());
    }

    /// x86 widens f16 exactly, in hardware or not.
    #[test]
    fn lavapipe_widens_exactly() {
        let Some(device) = crate::testing::device() else { return };
        assert!(agrees(&device).is_ok());
        if device.name().contains("llvmpipe") {
            assert_eq!(F16Values::of(&device), F16Values::ByDevice);
        }
    }
}
