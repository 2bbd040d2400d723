//! Calls that multiply rows with a weight: y = x · Wᵀ, in f32 sums whose order depends on shapes alone.

use super::shader::{Kernel, ProductShader, Slot};
use super::tiles::{GATHER_THREADS, GEMV_ROWS, GemmTile, GemvTile, MAX_EXPERTS, SORT_THREADS};
use super::weight::{Chunk, Weight};
use super::wgsl::constants;
use crate::buffers::Buffer;
use crate::commands::{Binding, Commands, GRID_WIDTH};
use crate::device::Device;
use crate::error::GpuError;
use std::sync::Arc;

/// Rows of f32 in a buffer, in elements: row r begins at `first + r · stride`. Rows of inputs and of results may be in one buffer where they do not overlap.
#[derive(Clone)]
pub(crate) struct Matrix {
    /// The buffer, or a part of it.
    pub(crate) binding: Binding,
    /// Element at which the first row begins.
    pub(crate) first: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

impl Matrix {
    /// A whole buffer of rows of `cols` elements.
    pub(crate) fn new(buffer: &Buffer, cols: usize) -> Matrix {
        Matrix { binding: Binding::from(buffer), first: 0, stride: cols }
    }
}

/// Rows of a layer's experts, sorted by expert on the device.
pub(crate) struct SortedRows {
    order: Buffer,
    tiles: Buffer,
    count: usize,
    tile: GemmTile,
}

/// Most rows of a GEMV. More are decoded once per tile by a GEMM.
const MOST_GEMV_ROWS: usize = GEMV_ROWS[GEMV_ROWS.len() - 1];

/// The numbers that all kernels share, as in `wgsl/head.wgsl`.
#[derive(Clone, Copy, Default)]
struct Params {
    rows: usize,
    inputs: usize,
    outputs: usize,
    row_bytes: usize,
    x: (usize, usize),
    x_share: usize,
    y: (usize, usize),
    expert_outputs: usize,
    first_expert: usize,
    experts: usize,
    scales: Scales,
    first_output: usize,
    first_row: usize,
}

#[derive(Clone, Copy, Default)]
struct Scales {
    rows: usize,
    inputs: usize,
    stride: usize,
    expert: usize,
}

impl Params {
    /// With where inputs and results are; `share` results have one row of inputs.
    fn between(self, (x, share): (&Matrix, usize), y: &Matrix) -> Params {
        let (x, y) = ((x.first, x.stride), (y.first + self.first_output, y.stride));
        Params { x, x_share: share.max(1), y, ..self }
    }

    fn words(&self, device: &Device) -> Result<[u32; 20], GpuError> {
        let Scales { rows, inputs, stride, expert } = self.scales;
        let all = [
            self.rows,
            self.inputs,
            self.outputs,
            self.row_bytes,
            0,
            self.x.0,
            self.x.1,
            self.x_share,
            self.y.0,
            self.y.1,
            self.expert_outputs,
            self.first_expert,
            self.experts,
            rows,
            inputs,
            stride,
            self.first_output,
            expert,
            self.first_row,
            0,
        ];
        let mut words = [0; 20];
        for (word, value) in words.iter_mut().zip(all) {
            *word = u32::try_from(value).map_err(|_| too_large(device, value))?;
        }
        Ok(words)
    }
}

pub(super) fn too_large(device: &Device, value: usize) -> GpuError {
    let problem = format!("a size of {value}, where shaders count with 32 bits");
    GpuError::Refused { device: device.name().to_owned(), what: "a product".into(), problem }
}

/// Workgroups for `count` parts of a result: further dimensions than the first are used where it has no more, and the third is free.
pub(super) fn folded(count: usize, rows: usize, device: &Device) -> Result<[u32; 3], GpuError> {
    let across = count.clamp(1, GRID_WIDTH);
    let down = count.div_ceil(across);
    if rows > GRID_WIDTH || down > GRID_WIDTH {
        return Err(too_large(device, rows.max(count)));
    }
    Ok([across, rows, down].map(|n| n as u32))
}

/// A weight with what its products share.
struct Product<'c, 'w> {
    commands: &'c mut Commands,
    device: Arc<Device>,
    weight: &'w Weight,
}

impl<'c, 'w> Product<'c, 'w> {
    fn new(commands: &'c mut Commands, weight: &'w Weight) -> Product<'c, 'w> {
        let device = Arc::clone(commands.device());
        Product { commands, device, weight }
    }

    /// Whether inputs are read four at a time.
    fn vectors(&self, x: &Matrix) -> bool {
        self.weight.shape.inputs.is_multiple_of(8) && x.first.is_multiple_of(4) && x.stride.is_multiple_of(4)
    }

    fn params(&self, chunk: &Chunk) -> Params {
        let shape = self.weight.shape;
        let scales = self.weight.scales.as_ref().map_or(Scales::default(), |scales| {
            let stride = shape.inputs.div_ceil(scales.inputs);
            let expert = shape.outputs.div_ceil(scales.rows) * stride;
            Scales { rows: scales.rows, inputs: scales.inputs, stride, expert }
        });
        let dense = shape.experts == 1;
        let first = chunk.rows.start;
        Params {
            inputs: shape.inputs,
            outputs: if dense { chunk.rows.len() } else { shape.outputs },
            row_bytes: self.weight.row_bytes,
            // a dense weight is its own only expert
            expert_outputs: shape.outputs,
            first_expert: if dense { 0 } else { first / shape.outputs },
            experts: if dense { 1 } else { chunk.rows.len() / shape.outputs },
            first_output: if dense { first } else { 0 },
            scales,
            ..Params::default()
        }
    }

    /// Calls a shader on a chunk.
    fn call(
        &mut self,
        (kernel, vectors): (Kernel, bool),
        chunk: &Chunk,
        params: Params,
        rest: &dyn Fn(Slot) -> Option<Binding>,
        groups: [u32; 3],
    ) -> Result<(), GpuError> {
        let block_scales = self.weight.scales.is_some();
        let shader = ProductShader { format: self.weight.format, kernel, vectors, block_scales };
        let pipeline = self.weight.pipeline(&self.device, &shader)?;
        let mut bindings = Vec::new();
        for slot in shader.slots().into_iter().skip(1) {
            let binding = match slot {
                Slot::Weight => Some(Binding::from(&chunk.buffer)),
                Slot::BlockScales => self.weight.scales.as_ref().map(|scales| Binding::from(&scales.buffer)),
                Slot::Codebook => self.weight.codebook.as_ref().map(Binding::from),
                slot => rest(slot),
            };
            bindings.push(binding.ok_or_else(|| GpuError::Refused {
                device: self.device.name().to_owned(),
                what: shader.name(),
                problem: format!("{slot:?} is bound to nothing"),
            })?);
        }
        let words = params.words(&self.device)?;
        self.commands.call(&pipeline, bindings, &words, groups);
        Ok(())
    }
}

/// Multiplies `rows` rows of `x` (inputs of the weight each) with a dense weight, into rows of `y` (outputs of the weight each).
///
/// # Errors
/// Sizes beyond 32 bits; what the device refuses.
pub(crate) fn matmul(
    commands: &mut Commands,
    weight: &Weight,
    x: &Matrix,
    y: &Matrix,
    rows: usize,
) -> Result<(), GpuError> {
    if rows == 0 {
        return Ok(());
    }
    let mut product = Product::new(commands, weight);
    if weight.shape.experts != 1 {
        let problem = format!("a product of all rows with {} experts", weight.shape.experts);
        let device = product.device.name().to_owned();
        return Err(GpuError::Refused { device, what: "a product".into(), problem });
    }
    let vectors = product.vectors(x);
    let bound = |slot| match slot {
        Slot::Input => Some(x.binding.clone()),
        Slot::Output => Some(y.binding.clone()),
        _ => None,
    };
    for chunk in &weight.chunks {
        let params = Params { rows, ..product.params(chunk).between((x, 1), y) };
        let outputs = chunk.rows.len();
        let (kernel, groups) = match rows {
            ..=MOST_GEMV_ROWS => {
                let tile = GemvTile::of(weight.shape.inputs.div_ceil(8));
                let most = GEMV_ROWS.into_iter().find(|most| *most >= rows).unwrap_or(MOST_GEMV_ROWS);
                let groups = folded(outputs.div_ceil(tile.workgroup_outputs()), 1, &product.device)?;
                (Kernel::Gemv { rows: most, tile, experts: false }, groups)
            }
            _ => {
                let tile = GemmTile::of(rows);
                let groups =
                    folded(outputs.div_ceil(tile.outputs), rows.div_ceil(tile.rows), &product.device)?;
                (Kernel::Gemm { tile, experts: false }, groups)
            }
        };
        product.call((kernel, vectors), chunk, params, &bound, groups)?;
    }
    Ok(())
}

/// Multiplies rows with one expert each: pair i takes row i / `share` of `x` and expert `ids[i]`, and gives row i of `y`. For few tokens: an expert that
/// several pairs name is read by each of them. An id that is no expert leaves its row as it was.
///
/// # Errors
/// As for [`matmul`].
pub(crate) fn matmul_by_id(
    commands: &mut Commands,
    weight: &Weight,
    (x, share): (&Matrix, usize),
    (ids, pairs): (impl Into<Binding>, usize),
    y: &Matrix,
) -> Result<(), GpuError> {
    if pairs == 0 {
        return Ok(());
    }
    let (mut product, ids) = (Product::new(commands, weight), ids.into());
    let vectors = product.vectors(x);
    let bound = |slot| match slot {
        Slot::Input => Some(x.binding.clone()),
        Slot::Output => Some(y.binding.clone()),
        Slot::Rows => Some(ids.clone()),
        _ => None,
    };
    let tile = GemvTile::of(weight.shape.inputs.div_ceil(8));
    let kernel = Kernel::Gemv { rows: 1, tile, experts: true };
    let groups = folded(weight.shape.outputs.div_ceil(tile.workgroup_outputs()), pairs, &product.device)?;
    for chunk in &weight.chunks {
        let params = Params { rows: pairs, ..product.params(chunk).between((x, share), y) };
        product.call((kernel, vectors), chunk, params, &bound, groups)?;
    }
    Ok(())
}

/// Sorts pairs by expert: for any number of products over the same ids. Pairs of one expert keep their order.
///
/// # Errors
/// More than 1024 experts; what the device refuses.
pub(crate) fn sort_by_expert(
    commands: &mut Commands,
    (ids, pairs): (impl Into<Binding>, usize),
    experts: usize,
) -> Result<SortedRows, GpuError> {
    let device = Arc::clone(commands.device());
    if experts > MAX_EXPERTS {
        return Err(too_large(&device, experts));
    }
    // an expert's share, if all are chosen as often
    let tile = GemmTile::of(pairs.div_ceil(experts.max(1)));
    let count = pairs / tile.rows + experts.min(pairs);
    let order = Buffer::new(&device, "rows sorted by expert", 4 * pairs as u64)?;
    let tiles = Buffer::new(&device, "tiles of experts", 16 * count as u64)?;
    let pipeline = device.compiled("sort_by_expert", sort_source(tile))?;
    let word = |value: usize| u32::try_from(value).map_err(|_| too_large(&device, value));
    let params = [word(pairs)?, word(experts)?, word(count)?, 0];
    commands.call(&pipeline, [ids.into(), (&order).into(), (&tiles).into()], &params, [1, 1, 1]);
    Ok(SortedRows { order, tiles, count, tile })
}

/// The shader that sorts, for tiles of this many rows.
pub(super) fn sort_source(tile: GemmTile) -> String {
    let mut source = String::new();
    let sizes = [("THREADS", SORT_THREADS), ("MAX_EXPERTS", MAX_EXPERTS), ("TILE_ROWS", tile.rows)];
    constants(&mut source, sizes);
    source.push_str(include_str!("wgsl/sort_by_expert.wgsl"));
    source
}

/// As [`matmul_by_id`], over [sorted](sort_by_expert) pairs: the weights of an expert are decoded once per tile of its rows.
///
/// # Errors
/// As for [`matmul`].
pub(crate) fn matmul_sorted(
    commands: &mut Commands,
    weight: &Weight,
    (x, share): (&Matrix, usize),
    sorted: &SortedRows,
    y: &Matrix,
) -> Result<(), GpuError> {
    let mut product = Product::new(commands, weight);
    let vectors = product.vectors(x);
    let bound = |slot| match slot {
        Slot::Input => Some(x.binding.clone()),
        Slot::Output => Some(y.binding.clone()),
        Slot::Rows => Some(Binding::from(&sorted.order)),
        Slot::Tiles => Some(Binding::from(&sorted.tiles)),
        _ => None,
    };
    let tile = sorted.tile;
    let kernel = Kernel::Gemm { tile, experts: true };
    let groups = folded(weight.shape.outputs.div_ceil(tile.outputs), sorted.count, &product.device)?;
    for chunk in &weight.chunks {
        let params = product.params(chunk).between((x, share), y);
        product.call((kernel, vectors), chunk, params, &bound, groups)?;
    }
    Ok(())
}

/// Dequantizes rows of the weight: row i of `y` is the weight's row `ids[i]`, which is left as it was where there is no such row.
///
/// # Errors
/// As for [`matmul`].
pub(crate) fn gather(
    commands: &mut Commands,
    weight: &Weight,
    (ids, rows): (&Buffer, usize),
    y: &Matrix,
) -> Result<(), GpuError> {
    if rows == 0 {
        return Ok(());
    }
    let mut product = Product::new(commands, weight);
    let bound = |slot| match slot {
        Slot::Output => Some(y.binding.clone()),
        Slot::Rows => Some(Binding::from(ids)),
        _ => None,
    };
    let octets = rows.saturating_mul(weight.shape.inputs.div_ceil(8));
    let groups = folded(octets.div_ceil(GATHER_THREADS), 1, &product.device)?;
    for chunk in &weight.chunks {
        let params = Params {
            rows,
            outputs: chunk.rows.len(),
            first_row: chunk.rows.start,
            y: (y.first, y.stride),
            ..product.params(chunk)
        };
        product.call((Kernel::Gather, false), chunk, params, &bound, groups)?;
    }
    Ok(())
}
