//! A 4-bit weight in the device's memory.

use super::format::{ScaleKind, W4CodeKind};
use super::shader::W4Shader;
use crate::buffers::{Buffer, word_bytes};
use crate::device::Device;
use crate::error::GpuError;
use crate::f16_values::F16Values;
use crate::pipeline::ShaderPipeline;
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

/// Sizes of a weight: K inputs, a multiple of eight; N columns; inputs that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct W4WeightShape {
    /// Inputs.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Inputs per group: divides K.
    pub group: usize,
}

/// A weight on the host.
#[derive(Clone, Copy, Debug)]
pub struct W4Operand<'a> {
    /// Its sizes.
    pub shape: W4WeightShape,
    /// `[K / 8, N]`: eight codes along K, the first in the lowest bits.
    pub words: &'a [u32],
    /// `[K / group, N]`.
    pub scales: GroupScales<'a>,
    /// What its codes mean.
    pub codes: W4CodeKind,
    /// Zero points `[K / group, N]` of [`W4CodeKind::Int4`]; else none.
    pub zeros: &'a [u8],
}

/// A weight on the device.
pub(crate) struct W4Weight {
    pub(crate) shape: W4WeightShape,
    pub(crate) codes: W4CodeKind,
    pub(super) kind: ScaleKind,
    pub(super) tensor_scale: f32,
    pub(super) words: Buffer,
    pub(super) scales: Buffer,
    pub(super) zeros: Option<Buffer>,
    pipelines: Mutex<Vec<(W4Shader, Arc<ShaderPipeline>)>>,
}

impl W4Weight {
    /// Copies a weight to the device.
    ///
    /// # Errors
    /// Sizes that do not agree; words that do not fit into one binding; no memory.
    pub(crate) fn upload(
        device: &Arc<Device>,
        what: &str,
        from: &W4Operand<'_>,
    ) -> Result<W4Weight, GpuError> {
        let W4Operand { shape, words, scales, codes, zeros } = *from;
        let W4WeightShape { k, n, group } = shape;
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
            words: Buffer::with(device, what, &bytes)?,
            scales: Buffer::with(device, "group scales", &scale_bytes)?,
            zeros,
            pipelines: Mutex::default(),
        })
    }

    /// A shader for it, compiled.
    pub(super) fn pipeline(
        &self,
        device: &Arc<Device>,
        shader: &W4Shader,
    ) -> Result<Arc<ShaderPipeline>, GpuError> {
        let mut known = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pipeline)) = known.iter().find(|(one, _)| one == shader) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = device.compiled(&shader.name(), shader.wgsl(F16Values::of(device)))?;
        known.push((*shader, Arc::clone(&pipeline)));
        Ok(pipeline)
    }
}
