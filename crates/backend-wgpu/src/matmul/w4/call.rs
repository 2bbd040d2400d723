//! Calls of the kernels for 4-bit weights.

use super::format::ScaleKind;
use super::shader::{W4RowShader, W4Shader, W4ShaderKind, reduce_source};
use super::tiles::{W4_FUSED, W4Tile};
use super::weight::{W4Weight, W4WeightShape};
use crate::buffers::Buffer;
use crate::commands::{Commands, ShaderBinding};
use crate::coop_matrix::CoopMatrix;
use crate::device::Device;
use crate::error::GpuError;
use crate::f16_values::F16Values;
use crate::matmul::limits::{folded, too_large};
use crate::matmul::rows::BufferRows;
use crate::matmul::tiles::{GATHER_THREADS, GEMV_ROWS};
use crate::matrix_trial;
use latent_graph::passes::Precision;
use std::sync::Arc;

/// The parameters of all kernels, in the order of `Params` in `wgsl/head.wgsl`.
#[derive(Clone, Copy, Default)]
struct W4Params {
    rows: usize,
    inputs: usize,
    columns: usize,
    group: usize,
    x: (usize, usize),
    y: (usize, usize),
    slices: usize,
    tensor_scale: f32,
    f16_factor: f32,
}

impl W4Params {
    fn words(&self, commands: &Commands) -> Result<[u32; 12], GpuError> {
        let sizes = [
            self.rows,
            self.inputs,
            self.columns,
            self.group,
            self.x.0,
            self.x.1,
            self.y.0,
            self.y.1,
            self.slices,
        ];
        let mut words = [0; 12];
        for (word, value) in words.iter_mut().zip(sizes) {
            *word = u32::try_from(value).map_err(|_| too_large(commands.device(), value))?;
        }
        words[sizes.len()] = self.tensor_scale.to_bits();
        words[sizes.len() + 1] = self.f16_factor.to_bits();
        Ok(words)
    }
}

/// Rows of inputs in f32 or f16. Offsets and strides in `rows` count elements. Two f16 are packed
/// in a word.
#[derive(Clone, Copy)]
pub(crate) struct W4Inputs<'m> {
    pub(crate) rows: &'m BufferRows,
    pub(crate) f16: bool,
}

impl<'m> From<&'m BufferRows> for W4Inputs<'m> {
    fn from(rows: &'m BufferRows) -> W4Inputs<'m> {
        W4Inputs { rows, f16: false }
    }
}

/// Records the call of a shader of a weight.
fn call(
    commands: &mut Commands,
    weight: &W4Weight,
    (entry, params, f16): (W4ShaderKind, W4Params, bool),
    operands: impl IntoIterator<Item = ShaderBinding>,
    groups: [u32; 3],
) -> Result<(), GpuError> {
    let W4WeightShape { k, n, group } = weight.shape;
    // A word has eight codes. If groups are whole words, the shader reads one scale per word.
    let whole_groups = group.is_multiple_of(8);
    let shader = W4Shader { entry, codes: weight.codes, scales: weight.kind, whole_groups, f16 };
    let pipeline = weight.pipeline(&Arc::clone(commands.device()), &shader)?;
    let (tensor_scale, f16_factor) = (weight.tensor_scale, weight.f16_factor);
    let params = W4Params { inputs: k, columns: n, group, tensor_scale, f16_factor, ..params };
    let words = params.words(commands)?;
    let own = [Some(&weight.words), Some(&weight.scales), weight.zeros.as_ref()];
    let bindings = own.into_iter().flatten().map(ShaderBinding::from).chain(operands);
    commands.call(&pipeline, bindings, &words, groups);
    Ok(())
}

/// Refuses inputs that do not begin at multiples of four elements: kernels read vectors of four.
fn check(commands: &Commands, W4Inputs { rows: x, .. }: W4Inputs<'_>) -> Result<(), GpuError> {
    if x.first.is_multiple_of(4) && x.stride.is_multiple_of(4) {
        return Ok(());
    }
    Err(GpuError::Refused {
        device: commands.device().name().to_owned(),
        what: "a 4-bit product".into(),
        problem: format!("rows of inputs at {} + r · {}: not multiples of 4", x.first, x.stride),
    })
}

/// Multiplies few rows, with codes decoded in registers. Up to eight rows read the weight once.
///
/// # Errors
/// If inputs are not aligned to four elements, for sizes beyond 32 bits, or if the device refuses a
/// call.
pub(crate) fn fused<'m>(
    commands: &mut Commands,
    weight: &W4Weight,
    x: impl Into<W4Inputs<'m>>,
    y: &BufferRows,
    rows: usize,
) -> Result<(), GpuError> {
    let x = x.into();
    if rows == 0 {
        return Ok(());
    }
    check(commands, x)?;
    let tile_rows = GEMV_ROWS.into_iter().find(|count| *count >= rows);
    let tile_rows = tile_rows.unwrap_or(GEMV_ROWS[GEMV_ROWS.len() - 1]);
    let params =
        W4Params { rows, x: (x.rows.first, x.rows.stride), y: (y.first, y.stride), ..W4Params::default() };
    // One dimension suffices: a weight with 65535 · 16 columns and only eight inputs has 4 MiB.
    let across = weight.shape.n.div_ceil(W4_FUSED.columns);
    let [columns, down, rest] = folded(across, rows.div_ceil(tile_rows), commands.device())?;
    if rest > 1 {
        return Err(too_large(commands.device(), weight.shape.n));
    }
    let operands = [x.rows.binding.clone(), y.binding.clone()];
    let entry = W4ShaderKind::Fused { rows: tile_rows };
    call(commands, weight, (entry, params, x.f16), operands, [columns, down, 1])
}

/// The cooperative matrices that multiply f16 inputs, if the device has them and they suit the
/// weight.
fn matrix(device: &Arc<Device>, weight: &W4Weight, f16: bool) -> Option<CoopMatrix> {
    // f16 inputs are the caller's choice, so the variants of default precision apply.
    let matrix = matrix_trial::variants(device, Precision::Default).matrices?;
    // Weights with E8M0 scales may exceed the range of f16. f32 inputs would be rounded to f16.
    (f16 && matrix.f16 && weight.kind != ScaleKind::E8m0).then_some(matrix)
}

/// Multiplies tiles over slices of K, into results or partial sums.
fn tiles(
    commands: &mut Commands,
    weight: &W4Weight,
    (x, rows): (W4Inputs<'_>, usize),
    slices: usize,
    y: &BufferRows,
) -> Result<(), GpuError> {
    check(commands, x)?;
    let tile = W4Tile::of(rows);
    let entry = match matrix(commands.device(), weight, x.f16) {
        Some(matrix) => W4ShaderKind::Matrices { tile, matrix },
        None => W4ShaderKind::Gemm { tile },
    };
    let params = W4Params {
        rows,
        x: (x.rows.first, x.rows.stride),
        y: (y.first, y.stride),
        slices,
        ..W4Params::default()
    };
    let [columns, down, rest] =
        folded(weight.shape.n.div_ceil(tile.columns), rows.div_ceil(tile.rows), commands.device())?;
    // Slices are the third dimension of the call, which WebGPU limits to 65535. So tiles may not
    // need it too.
    let slices = u32::try_from(slices).ok().filter(|slices| *slices <= u32::from(u16::MAX) && rest == 1);
    let slices = slices.ok_or_else(|| too_large(commands.device(), weight.shape.n))?;
    let operands = [x.rows.binding.clone(), y.binding.clone()];
    call(commands, weight, (entry, params, x.f16), operands, [columns, down, slices])
}

/// Multiplies many rows with double-buffered tiles: the next step is fetched while the current one
/// is multiplied.
pub(crate) fn gemm<'m>(
    commands: &mut Commands,
    weight: &W4Weight,
    x: impl Into<W4Inputs<'m>>,
    y: &BufferRows,
    rows: usize,
) -> Result<(), GpuError> {
    if rows == 0 { Ok(()) } else { tiles(commands, weight, (x.into(), rows), 1, y) }
}

/// As [`gemm`], with K cut into slices (split-K), which keeps a device busy if there are few tiles.
/// `partials` holds the results of each slice, which are then added in order.
pub(crate) fn striped<'m>(
    commands: &mut Commands,
    weight: &W4Weight,
    (x, rows): (impl Into<W4Inputs<'m>>, usize),
    (partials, slices): (&Buffer, usize),
    y: &BufferRows,
) -> Result<(), GpuError> {
    if rows == 0 {
        return Ok(());
    }
    let n = weight.shape.n;
    tiles(commands, weight, (x.into(), rows), slices, &BufferRows::new(partials, n))?;
    // A second call, since WGSL orders no memory between workgroups of one call.
    reduce(commands, (partials, slices), (rows, n), y)
}

/// Adds partial sums, `[slices, rows, columns]`, in the order of the slices.
pub(crate) fn reduce(
    commands: &mut Commands,
    (partials, slices): (&Buffer, usize),
    (rows, columns): (usize, usize),
    y: &BufferRows,
) -> Result<(), GpuError> {
    let count = rows.saturating_mul(columns);
    let needed = slices.saturating_mul(count).saturating_mul(4);
    let fits = u64::try_from(needed).is_ok_and(|needed| needed <= partials.bytes());
    if slices == 0 || !fits {
        return Err(GpuError::Refused {
            device: commands.device().name().to_owned(),
            what: "a reduction".into(),
            problem: format!("{slices} slices of {rows} × {columns} sums in {} bytes", partials.bytes()),
        });
    }
    let pipeline = commands.device().compiled("w4_reduce", reduce_source())?;
    let params =
        W4Params { rows, columns, slices, y: (y.first, y.stride), ..W4Params::default() }.words(commands)?;
    let groups = folded(count.div_ceil(GATHER_THREADS), 1, commands.device())?;
    commands.call(&pipeline, [ShaderBinding::from(partials), y.binding.clone()], &params, groups);
    Ok(())
}

/// Dequantizes to rows of f32, or of f16 if `halves` is set. Then `first` and `stride` of `out`
/// count words of two elements.
pub(crate) fn dequant(
    commands: &mut Commands,
    weight: &W4Weight,
    halves: bool,
    out: &BufferRows,
) -> Result<(), GpuError> {
    let W4WeightShape { k, n, .. } = weight.shape;
    let (entry, columns) =
        if halves { (W4ShaderKind::DequantF16, n.div_ceil(2)) } else { (W4ShaderKind::DequantF32, n) };
    // A thread decodes a word of eight codes; for f16 those of two columns, which share the words
    // of the result.
    let threads = (k / 8).saturating_mul(columns);
    let groups = folded(threads.div_ceil(GATHER_THREADS), 1, commands.device())?;
    let params = W4Params { y: (out.first, out.stride), ..W4Params::default() };
    call(commands, weight, (entry, params, false), [out.binding.clone()], groups)
}

/// Applies an elementwise shader to rows of `columns` elements. `x_words` is the number of words
/// from one input row to the next, for rows of f16.
pub(crate) fn map_rows(
    commands: &mut Commands,
    map: W4RowShader,
    (rows, columns): (usize, usize),
    operands: impl IntoIterator<Item = ShaderBinding>,
    (x_words, y): (usize, &BufferRows),
) -> Result<(), GpuError> {
    let device = Arc::clone(commands.device());
    let across = match map {
        // A thread writes a whole word, which is two f16.
        W4RowShader::SelectF16 | W4RowShader::ToF16 => columns.div_ceil(2),
        _ => columns,
    };
    let count = rows.saturating_mul(across);
    if count == 0 {
        return Ok(());
    }
    let pipeline = device.compiled(map.name(), map.wgsl(F16Values::of(&device)))?;
    let params = W4Params { rows, columns, x: (0, x_words), y: (y.first, y.stride), ..W4Params::default() };
    let words = params.words(commands)?;
    let groups = folded(count.div_ceil(GATHER_THREADS), 1, &device)?;
    let operands = operands.into_iter().chain([y.binding.clone()]);
    commands.call(&pipeline, operands, &words, groups);
    Ok(())
}
