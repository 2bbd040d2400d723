//! A 4-bit weight in device memory.

use super::format::{ScaleKind, W4CodeKind};
use super::shader::W4Shader;
use crate::buffers::{Buffer, word_bytes};
use crate::device::Device;
use crate::error::GpuError;
use crate::f16_values::F16Values;
use crate::pipeline::ShaderPipeline;
use half::f16;
use latent_quant::f8_e4m3;
use std::sync::{Arc, Mutex, PoisonError};

/// Group scales, row-major `[K / group, N]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupScales<'a> {
    /// Bits of f16.
    F16(&'a [u16]),
    /// Exponents: 2^(code − 127); 255 is NaN.
    E8m0(&'a [u8]),
    /// F8_E4M3 codes times the tensor's scale.
    E4m3(&'a [u8], f32),
}

/// The sizes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct W4WeightShape {
    /// Inputs: a multiple of eight.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Inputs per scale: a divisor of K.
    pub group: usize,
}

/// A weight on the host.
#[derive(Clone, Copy, Debug)]
pub struct W4Operand<'a> {
    pub shape: W4WeightShape,
    /// `[K / 8, N]`: eight codes along K, the first in the lowest bits.
    pub words: &'a [u32],
    /// `[K / group, N]`.
    pub scales: GroupScales<'a>,
    pub codes: W4CodeKind,
    /// Zero points `[K / group, N]` of [`W4CodeKind::Int4`]. Empty for other codes.
    pub zeros: &'a [u8],
}

/// A weight on the device.
pub(crate) struct W4Weight {
    pub(crate) shape: W4WeightShape,
    pub(crate) codes: W4CodeKind,
    pub(super) kind: ScaleKind,
    pub(super) tensor_scale: f32,
    /// A power of two by which weights are multiplied, in addition to `WEIGHT_FACTOR`, before they
    /// are rounded to f16. Sums are divided by it.
    pub(super) f16_factor: f32,
    pub(super) words: Buffer,
    pub(super) scales: Buffer,
    pub(super) zeros: Option<Buffer>,
    pipelines: Mutex<Vec<(W4Shader, Arc<ShaderPipeline>)>>,
}

/// Maximum distance of a code from its zero point.
const MAX_CODE: f32 = 16.0;

/// `WEIGHT_FACTOR` of the shaders.
const SHADER_FACTOR: f32 = 64.0;

/// The power of two that scales the largest possible weight to between a quarter of the largest f16
/// and the largest f16.
fn f16_factor(scales: GroupScales<'_>) -> f32 {
    let finite = |scale: f32| if scale.is_finite() { scale.abs() } else { 0.0 };
    let largest = match scales {
        GroupScales::F16(bits) => {
            bits.iter().map(|bits| finite(f16::from_bits(*bits).to_f32())).fold(0.0, f32::max)
        }
        // Such weights are not multiplied in f16.
        GroupScales::E8m0(_) => return 1.0,
        GroupScales::E4m3(codes, tensor) => {
            // The code 0x7f is NaN.
            let magnitudes = codes.iter().map(|code| code & 0x7f).filter(|code| *code != 0x7f);
            finite(f8_e4m3::value(magnitudes.max().unwrap_or(0)) * tensor)
        }
    };
    // If all scales are 0 or not finite, any factor is right.
    // With a larger factor, large weights would be clamped. With a smaller one, small weights would
    // lose bits.
    let room = f32::from(f16::MAX) / (largest * MAX_CODE * SHADER_FACTOR);
    if room.is_normal() { 2f32.powi(room.log2().floor().clamp(-100.0, 100.0) as i32) } else { 1.0 }
}

impl W4Weight {
    /// Uploads a weight.
    ///
    /// # Errors
    /// If sizes do not agree, if the words exceed a binding, or if memory is too small.
    pub(crate) fn upload(
        device: &Arc<Device>,
        what: &str,
        from: &W4Operand<'_>,
    ) -> Result<W4Weight, GpuError> {
        let W4Operand { shape, words, scales, codes, zeros } = *from;
        let W4WeightShape { k, n, group } = shape;
        // Only E4M3 scales (NVFP4) have a second factor for the whole tensor.
        let (kind, scale_bytes, count, tensor_scale) = match scales {
            GroupScales::F16(bits) => {
                let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                (ScaleKind::F16, bytes, bits.len(), 1.0)
            }
            GroupScales::E8m0(codes) => (ScaleKind::E8m0, codes.to_vec(), codes.len(), 1.0),
            GroupScales::E4m3(codes, tensor) => (ScaleKind::E4m3, codes.to_vec(), codes.len(), tensor),
        };
        let groups = k.checked_div(group).and_then(|groups| groups.checked_mul(n));
        let needed_zeros = if codes == W4CodeKind::Int4 { groups } else { Some(0) };
        let whole = k > 0 && n > 0 && k.is_multiple_of(8) && group > 0 && k.is_multiple_of(group);
        let agrees = (k / 8).checked_mul(n) == Some(words.len()) && groups == Some(count);
        if !whole || !agrees || needed_zeros != Some(zeros.len()) {
            let (words, zeros) = (words.len(), zeros.len());
            return Err(GpuError::Refused {
                device: device.name().to_owned(),
                what: what.to_owned(),
                problem: format!(
                    "{words} words, {count} scales and {zeros} zero points do not match a weight of {k} × {n} in groups of {group}; K must be a multiple of 8 and of the group"
                ),
            });
        }
        let bytes = word_bytes(words);
        let zeros =
            (codes == W4CodeKind::Int4).then(|| Buffer::with(device, "zero points", zeros)).transpose()?;
        Ok(W4Weight {
            shape,
            codes,
            kind,
            tensor_scale,
            f16_factor: f16_factor(scales),
            words: Buffer::with(device, what, &bytes)?,
            scales: Buffer::with(device, "group scales", &scale_bytes)?,
            zeros,
            pipelines: Mutex::default(),
        })
    }

    /// The compiled shader.
    pub(super) fn pipeline(
        &self,
        device: &Arc<Device>,
        shader: &W4Shader,
    ) -> Result<Arc<ShaderPipeline>, GpuError> {
        // Before the lock: the first call runs a probe on the device. In a page, WebAssembly is
        // suspended while it waits, and another call that needs the lock would deadlock.
        let f16_values = F16Values::of(device);
        let mut known = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pipeline)) = known.iter().find(|(one, _)| one == shader) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = device.compiled(&shader.name(), shader.wgsl(f16_values))?;
        known.push((*shader, Arc::clone(&pipeline)));
        Ok(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weight_of_any_scales_is_a_large_f16() {
        let check = |scales: GroupScales<'_>, largest: f32| {
            let product = largest * MAX_CODE * SHADER_FACTOR * f16_factor(scales);
            assert!((16384.0..=65504.0).contains(&product), "{largest}: {product}");
        };
        for scale in [f16::MAX, f16::from_f32(0.01), f16::from_f32(-3.7), f16::MIN_POSITIVE_SUBNORMAL] {
            let bits = [f16::ZERO.to_bits(), scale.to_bits(), f16::INFINITY.to_bits()];
            check(GroupScales::F16(&bits), scale.to_f32().abs());
        }
        for (codes, tensor) in [([0x7eu8, 3, 0xff], 0.37f32), ([1, 0, 0x80], 1e-9), ([0xfe, 0, 0], 1e6)] {
            let code = codes.iter().map(|code| code & 0x7f).filter(|code| *code != 0x7f).max().unwrap();
            check(GroupScales::E4m3(&codes, tensor), f8_e4m3::value(code) * tensor);
        }
        assert_eq!([0x7e, 1, 8].map(f8_e4m3::value), [448.0, 2f32.powi(-9), 2f32.powi(-6)]);
        let odd = [GroupScales::F16(&[0]), GroupScales::F16(&[]), GroupScales::E4m3(&[0x7f], f32::NAN)];
        assert!(odd.map(f16_factor).iter().all(|factor| *factor == 1.0));
    }
}
