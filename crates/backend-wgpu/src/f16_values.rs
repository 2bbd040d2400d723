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

/// Number of f16 values.
const COUNT: u32 = 1 << 16;

/// The method of a device. WGSL allows devices to flush subnormal f16 to zero, but scales of small
/// weights are subnormal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum F16Values {
    /// Integer operations: a dozen instructions, exact on every device.
    ByIntegers,
    /// The device's conversion, if it is exact.
    ByDevice,
}

impl F16Values {
    /// The function `f16_value(bits)`. The upper 16 bits of `bits` are ignored.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            F16Values::ByIntegers => BY_INTEGERS,
            F16Values::ByDevice => BY_DEVICE,
        }
    }

    /// The fastest method that is exact on a device. The device's conversion is tried once with
    /// every f16.
    pub(crate) fn of(device: &Arc<Device>) -> F16Values {
        // A hollow device cannot run the probe. All known GPUs convert exactly.
        let exact = device.hollow || device.exact_f16.get().copied().unwrap_or_else(|| tried(device));
        if exact { F16Values::ByDevice } else { F16Values::ByIntegers }
    }
}

/// Runs the probe and stores its result.
fn tried(device: &Arc<Device>) -> bool {
    // The probe runs outside of `get_or_init`: in a page, WebAssembly is suspended while it waits,
    // and another call that needs the cell would deadlock.
    match agrees(device) {
        Ok(exact) => *device.exact_f16.get_or_init(|| exact),
        // Not stored: the cause (a lost device, no memory) will appear again in the caller's next
        // call.
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
