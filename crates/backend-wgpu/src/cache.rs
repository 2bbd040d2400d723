//! Shaders over rows of the KV cache: reading and packing elements of each type, copies, and
//! shifts.

use crate::buffers::Buffer;
use crate::commands::Commands;
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::shader::{Shader, ShaderConstant};
use crate::values::internal;
use latent_backend::{BackendError, KV_BLOCK, Rotation};
use latent_graph::config::RopePairs;
use latent_graph::ir::{KvLayer, KvLayerKind};
use latent_types::{CacheType, Setting};
use std::sync::Arc;

const SLOTS: &str = include_str!("cache/slots.wgsl");
const SHIFT: &str = include_str!("cache/shift.wgsl");
const COPY: &str = include_str!("cache/copy.wgsl");
const PAIRS: &str = include_str!("cache/pairs.wgsl");

/// The cache types that shaders support.
pub(crate) const CACHE_TYPES: [CacheType; 4] =
    [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Int8];

/// The WGSL function `cached(row: u32, i: u32) -> f32`, which reads an element of a row of `cache`.
pub(crate) fn reading(ty: CacheType) -> &'static str {
    match ty {
        CacheType::F32 => include_str!("cache/read_f32.wgsl"),
        CacheType::Bf16 => include_str!("cache/read_bf16.wgsl"),
        CacheType::F16 => include_str!("cache/read_f16.wgsl"),
        CacheType::Int8 => include_str!("cache/read_int8.wgsl"),
        // `row_words` refuses these types.
        CacheType::Q8_0 | CacheType::Q4_0 | CacheType::Fp8 => "",
    }
}

/// The WGSL function `packed(row: u32, word: u32) -> u32`, which packs a word from elements that
/// the shader's function `element(row: u32, i: u32) -> f32` returns.
pub(crate) fn packing(ty: CacheType) -> &'static str {
    match ty {
        CacheType::F32 => include_str!("cache/pack_f32.wgsl"),
        CacheType::Bf16 => include_str!("cache/pack_bf16.wgsl"),
        CacheType::F16 => include_str!("cache/pack_f16.wgsl"),
        CacheType::Int8 => include_str!("cache/pack_int8.wgsl"),
        // As in `reading`.
        CacheType::Q8_0 | CacheType::Q4_0 | CacheType::Fp8 => "",
    }
}

/// Adds the function `slot_of(blocks: u32, position: u32) -> u32`, which finds rows by block
/// tables.
pub(crate) fn with_slots(shader: Shader) -> Shader {
    shader.count("KV_BLOCK", KV_BLOCK).after(SLOTS)
}

/// Adds the rotation of `pairs` pairs of elements to a shader.
pub(crate) fn with_pairs(shader: Shader, (pairs, kind): (usize, RopePairs)) -> Shader {
    let interleaved = ShaderConstant::Flag(kind == RopePairs::Interleaved);
    shader.after(PAIRS).count("PAIRS", pairs).with("INTERLEAVED", interleaved)
}

/// The error for a cache type without shaders.
pub(crate) fn unsupported(ty: CacheType) -> BackendError {
    BackendError::Unsupported(format!(
        "the GPU backend does not support a KV cache of {ty}: use {}, or the CPU",
        Setting::Cache.to("int8")
    ))
}

/// Words of a row.
pub(crate) fn row_words(kv_layer: &KvLayer, ty: CacheType) -> Result<usize, BackendError> {
    let row = kv_layer.row(ty);
    if !CACHE_TYPES.contains(&ty) {
        return Err(unsupported(ty));
    }
    let whole = row.bytes().is_multiple_of(4) && (ty.is_float() || row.content.is_multiple_of(4));
    match whole {
        true => Ok(row.bytes() / 4),
        false => Err(BackendError::Unsupported(format!(
            "the GPU backend cannot store KV cache rows of {} elements, {} of them rotated, as {ty}: use {}",
            kv_layer.width,
            kv_layer.rope,
            Setting::Cache.to("f32")
        ))),
    }
}

/// Adds the sizes of the cache rows that a shader reads or writes.
pub(crate) fn with_rows(shader: Shader, kv_layer: &KvLayer, ty: CacheType) -> Result<Shader, BackendError> {
    Ok(shader
        .count("ROW_WIDTH", kv_layer.width)
        .count("ROW_WORDS", row_words(kv_layer, ty)?)
        .count("CONTENT", kv_layer.row(ty).content))
}

/// The pipeline that copies words within a layer.
pub(crate) fn copy_rows(device: &Device) -> Result<Arc<ShaderPipeline>, GpuError> {
    device.pipeline(&copy_shader())
}

fn copy_shader() -> Shader {
    Shader::new("copy_block", COPY)
}

/// The shader that rotates the rope parts of heads of `head_width` elements, which begin at
/// `rope_at`.
fn shift_shader(
    kv_layer: &KvLayer,
    ty: CacheType,
    (head_width, rope_at): (usize, usize),
    (pairs, kind): (usize, RopePairs),
) -> Result<Shader, BackendError> {
    let shader = Shader::new("shift_row", SHIFT)
        .after(packing(ty))
        .after(reading(ty))
        .count("HEAD_WIDTH", head_width)
        .count("ROPE_AT", rope_at)
        .count("ANGLES", angle_quads(pairs));
    with_rows(with_pairs(shader, (pairs, kind)), kv_layer, ty)
}

/// All complete shaders of this file.
#[cfg(test)]
pub(crate) fn shaders() -> Vec<Shader> {
    let latent = KvLayer::of_rows(KvLayerKind::Latent, 0, 576, 64);
    let mut all = vec![copy_shader()];
    for kind in [RopePairs::Interleaved, RopePairs::NeoX] {
        all.extend(CACHE_TYPES.map(|ty| shift_shader(&latent, ty, (576, 512), (32, kind)).unwrap()));
    }
    all
}

/// Copies a row and rotates its rope part.
pub(crate) struct CacheShift {
    pipeline: Arc<ShaderPipeline>,
    pairs: usize,
}

impl CacheShift {
    pub(crate) fn new(
        device: &Device,
        kv_layer: &KvLayer,
        ty: CacheType,
        rotation: &Rotation,
    ) -> Result<CacheShift, BackendError> {
        // The distance of heads, and the offset of the rope part in a head. A latent and an
        // indexer's key count as one head.
        let (head_width, rope_at) = match kv_layer.kind {
            KvLayerKind::Latent => (kv_layer.width, kv_layer.width - rotation.rope),
            KvLayerKind::Index => (kv_layer.width, 0),
            KvLayerKind::ConvInputs | KvLayerKind::DeltaState => {
                return internal("rows of a recurrent state".into());
            }
            KvLayerKind::Expanded => (rotation.nope + rotation.rope + rotation.v, rotation.nope),
        };
        let kind =
            if kv_layer.kind == KvLayerKind::Index { rotation.index_pairs() } else { rotation.pairs() };
        let pairs = (rotation.rope / 2, kind);
        let shader = shift_shader(kv_layer, ty, (head_width, rope_at), pairs)?;
        Ok(CacheShift { pipeline: device.pipeline(&shader)?, pairs: rotation.rope / 2 })
    }

    /// Copies the row at slot `from` to slot `to`, rotated by `angles`.
    pub(crate) fn record(
        &self,
        commands: &mut Commands,
        layer: &Buffer,
        [from, to]: [usize; 2],
        angles: impl Iterator<Item = (f64, f64)>,
    ) {
        // Two words of padding: in a uniform, an array of vec4 begins at a multiple of 16 bytes.
        let mut params = vec![from as u32, to as u32, 0, 0];
        // Pairs without a frequency stay as they are.
        let still = std::iter::repeat((1.0, 0.0));
        let angles = angles.chain(still).take(2 * angle_quads(self.pairs));
        params.extend(angles.flat_map(|(cos, sin)| [(cos as f32).to_bits(), (sin as f32).to_bits()]));
        commands.call(&self.pipeline, [layer.into()], &params, [1, 1, 1]);
    }
}

/// Number of vec4 for the angles of `pairs` pairs. At least one, since WGSL has no empty arrays.
fn angle_quads(pairs: usize) -> usize {
    // A vec4 has cosine and sine of two pairs.
    pairs / 2 + 1
}
