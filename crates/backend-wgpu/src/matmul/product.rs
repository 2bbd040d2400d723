//! Calls that multiply rows by a weight: y = x · Wᵀ. Sums are f32, and their order depends on
//! shapes only.

use super::gemm::GemmForm;
use super::items::InputAccess;
pub(crate) use super::items::{ProductEpilogue, ProductItems, RowAddress};
use super::limits::{folded, refused, too_large};
use super::products::QuantizedItems;
use super::shader::{BindingSlot, ProductShader, ProductShaderKind};
use super::sort::SortedItems;
use super::tiles::{GATHER_THREADS, GEMV_ROWS, GemmTile, GemvTile, MAX_GEMV_ROWS, TRANSPOSED};
use super::weight::{DeviceWeight, WeightChunk};
use crate::commands::{Commands, GRID_WIDTH, ShaderBinding};
use crate::device::Device;
use crate::error::GpuError;
use std::ops::Range;
use std::sync::Arc;

/// The matrix of the weight by which a slot is multiplied.
#[derive(Clone)]
pub(crate) enum SlotMatrix {
    /// The first matrix.
    One,
    /// The matrix with this index plus the slot's number.
    PerSlot(usize),
    /// The matrix whose index is element `offset + row · slots + slot` of `ids`. An index out of
    /// range leaves the result unchanged.
    ByIds {
        ids: ShaderBinding,
        /// Index of row 0's first id.
        offset: u32,
    },
}

/// The rows of each matrix that take part in a product.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightSlice {
    /// Rows of each matrix.
    pub(crate) rows: Range<usize>,
    /// If set, y = x · W: the rows are inputs, and the elements of a row are outputs.
    pub(crate) transposed: bool,
}

/// Maximum outputs of a product whose workgroups quantize inputs by themselves.
// With more outputs, many workgroups would repeat that work.
const MAX_QUANTIZING_OUTPUTS: usize = 32768;

/// Rows per workgroup of a transposed product.
// Each row takes registers for eight outputs.
const TRANSPOSED_ROWS: [usize; 3] = [1, 2, 4];

/// The parameters that all kernels share, in the order of `Params` in `wgsl/head.wgsl`.
#[derive(Clone, Copy, Default)]
struct ProductParams {
    rows: (usize, usize),
    slots: usize,
    inputs: usize,
    outputs: usize,
    row_bytes: usize,
    first_byte: usize,
    matrix_rows: usize,
    matrices: (usize, usize),
    matrix_step: usize,
    x: [u32; 3],
    y: [u32; 3],
    ids: u32,
    scales: ScaleStrides,
    d_first: usize,
    factor: f32,
}

#[derive(Clone, Copy, Default)]
struct ScaleStrides {
    rows: usize,
    inputs: usize,
    stride: usize,
    matrix: usize,
    matrix_rows: usize,
    first_row: usize,
}

impl ProductParams {
    fn of_items(self, items: &ProductItems) -> ProductParams {
        let rows = (items.rows.start, items.rows.len());
        ProductParams { rows, slots: items.slots, x: items.x.address, y: items.y.address, ..self }
    }

    /// The access to f32 inputs: as vectors of four if all rows are aligned.
    fn floats(&self) -> InputAccess {
        // Kernels read octets of eight inputs, so vectors of four need whole octets at multiples of
        // four.
        let whole = self.inputs.is_multiple_of(8) && self.x.iter().all(|n| n.is_multiple_of(4));
        if whole { InputAccess::Vectors } else { InputAccess::Elements }
    }

    /// Sets the matrix of the first slot. The following slots use the following matrices.
    fn per_slot(self, first: usize) -> ProductParams {
        let skipped = first - self.matrices.0;
        let first_byte = self.first_byte + skipped * self.matrix_rows * self.row_bytes;
        ProductParams { first_byte, matrices: (first, self.matrices.1 - skipped), matrix_step: 1, ..self }
    }

    fn words(&self, device: &Device) -> Result<[u32; 26], GpuError> {
        let word = |value: usize| u32::try_from(value).map_err(|_| too_large(device, value));
        let ScaleStrides { rows, inputs, stride, matrix, matrix_rows, first_row } = self.scales;
        Ok([
            word(self.rows.0)?,
            word(self.rows.1)?,
            word(self.slots)?,
            word(self.inputs)?,
            word(self.outputs)?,
            word(self.row_bytes)?,
            word(self.first_byte)?,
            word(self.matrix_rows)?,
            word(self.matrices.0)?,
            word(self.matrices.1)?,
            word(self.matrix_step)?,
            self.x[0],
            self.x[1],
            self.x[2],
            self.y[0],
            self.y[1],
            self.y[2],
            self.ids,
            word(rows)?,
            word(inputs)?,
            word(stride)?,
            word(matrix)?,
            word(matrix_rows)?,
            word(first_row)?,
            word(self.d_first)?,
            self.factor.to_bits(),
        ])
    }
}

/// A product with a part of a weight.
struct WeightProduct<'c, 'w> {
    commands: &'c mut Commands,
    device: Arc<Device>,
    weight: &'w DeviceWeight,
    part: WeightSlice,
    /// The epilogue, and the factor of [`ProductEpilogue::Add`].
    keep: (ProductEpilogue, f32),
}

impl<'c, 'w> WeightProduct<'c, 'w> {
    fn new(
        commands: &'c mut Commands,
        weight: &'w DeviceWeight,
        part: &WeightSlice,
    ) -> Result<WeightProduct<'c, 'w>, GpuError> {
        let device = Arc::clone(commands.device());
        if part.rows.end > weight.shape.outputs || part.rows.is_empty() {
            return Err(refused(&device, format!("rows {:?} of {}", part.rows, weight.shape.outputs)));
        }
        Ok(WeightProduct {
            commands,
            device,
            weight,
            part: part.clone(),
            keep: (ProductEpilogue::Store, 0.0),
        })
    }

    /// The parameters for the part's rows in a chunk. A chunk holds whole matrices, or some rows of
    /// the only matrix. None if it holds no row of the part.
    fn params(&self, chunk: &WeightChunk) -> Option<ProductParams> {
        let (shape, row_bytes) = (self.weight.shape, self.weight.row_bytes);
        let only = shape.matrices == 1;
        let held = if only { chunk.rows.clone() } else { 0..shape.outputs };
        let rows = self.part.rows.start.max(held.start)..self.part.rows.end.min(held.end);
        let matrices =
            if only { 0..1 } else { chunk.rows.start / shape.outputs..chunk.rows.end / shape.outputs };
        let scales = self.weight.scales.as_ref().map_or(ScaleStrides::default(), |scales| {
            let stride = shape.inputs.div_ceil(scales.inputs);
            let own = scales.per_matrix;
            // Blocks of scales begin anew with each matrix, so that the shader skips whole matrices
            // of scales; or they run through all matrices, so that it counts their rows.
            ScaleStrides {
                rows: scales.rows,
                inputs: scales.inputs,
                stride,
                matrix: if own { shape.outputs.div_ceil(scales.rows) * stride } else { 0 },
                matrix_rows: if own { 0 } else { shape.outputs },
                first_row: 0,
            }
        });
        // Scales belong to rows of the whole matrix, not of the part.
        let scales = ScaleStrides { first_row: rows.start, ..scales };
        (!rows.is_empty()).then(|| ProductParams {
            inputs: shape.inputs,
            outputs: rows.len(),
            row_bytes,
            first_byte: (rows.start - held.start) * row_bytes,
            matrix_rows: shape.outputs,
            matrices: (matrices.start, matrices.len()),
            scales,
            d_first: chunk.d_first,
            ..ProductParams::default()
        })
    }

    /// Records the call of a shader on a chunk.
    fn call(
        &mut self,
        (kernel, inputs): (ProductShaderKind, InputAccess),
        chunk: &WeightChunk,
        params: ProductParams,
        bound: &dyn Fn(BindingSlot) -> Option<ShaderBinding>,
        groups: [u32; 3],
    ) -> Result<(), GpuError> {
        let block_scales = self.weight.scales.is_some();
        let (format, storage) = (self.weight.format, self.weight.storage);
        let (keep, factor) = self.keep;
        let shader = ProductShader { format, kernel, storage, inputs, block_scales, keep };
        let pipeline = self.weight.pipeline(&self.device, &shader)?;
        let mut bindings = Vec::new();
        // Binding 0 has the parameters, which `Commands::call` adds.
        for slot in shader.slots().into_iter().skip(1) {
            let binding = match slot {
                BindingSlot::Weight => Some(ShaderBinding::from(&chunk.buffer)),
                BindingSlot::BlockScales => {
                    self.weight.scales.as_ref().map(|scales| ShaderBinding::from(&scales.buffer))
                }
                BindingSlot::Codebook => self.weight.codebook.as_ref().map(ShaderBinding::from),
                slot => bound(slot),
            };
            let problem =
                || refused(&self.device, format!("{}: {slot:?} is bound to nothing", shader.name()));
            bindings.push(binding.ok_or_else(problem)?);
        }
        let words = ProductParams { factor, ..params }.words(&self.device)?;
        self.commands.call(&pipeline, bindings, &words, groups);
        Ok(())
    }

    /// The items with quantized inputs, if `wanted` is set and the blocks fit a binding.
    fn quantized(&mut self, items: &ProductItems, wanted: bool) -> Result<Option<QuantizedItems>, GpuError> {
        let (products, inputs) = (&self.weight.products, self.weight.shape.inputs);
        if wanted { products.quantize(self.commands, items, inputs) } else { Ok(None) }
    }

    /// Multiplies items by their matrices in a chunk.
    fn items(
        &mut self,
        chunk: &WeightChunk,
        params: ProductParams,
        items: &ProductItems,
        ids: Option<&ShaderBinding>,
    ) -> Result<(), GpuError> {
        let rows = items.rows.len();
        let variants = self.weight.products.variants;
        let form = self.weight.gemm_form();
        // By ids, neighbouring rows may have different matrices. They cannot share decoded weights,
        // so a GEMM would gain nothing.
        let few = ids.is_some() || rows <= MAX_GEMV_ROWS;
        // A transposed product adds elements of different rows. Their blocks have different scales,
        // so integers cannot be added before they are scaled.
        let integers = !self.part.transposed
            && if few { self.weight.multiplies_integers() } else { form == GemmForm::Integers };
        let in_kernel = integers && self.quantizes_in_kernel(&params.of_items(items));
        let quantized = self.quantized(items, integers && !in_kernel)?;
        let items = quantized.as_ref().map_or(items, |quantized| &quantized.items);
        let params = params.of_items(items);
        // The smallest compiled number of rows that is enough, or else the largest.
        let fitting = |sizes: &[usize]| {
            let enough = sizes.iter().copied().find(|size| *size >= rows);
            enough.or(sizes.last().copied()).unwrap_or(1)
        };
        let (kernel, across, rows_each) = if self.part.transposed {
            let rows = fitting(&TRANSPOSED_ROWS);
            (
                ProductShaderKind::Transposed { rows },
                params.inputs.div_ceil(8).div_ceil(TRANSPOSED.octets),
                rows,
            )
        } else if few {
            let tile = GemvTile::of(params.inputs.div_ceil(8));
            // By ids, a workgroup has one row, because the next row may have another matrix.
            let rows = if ids.is_some() { 1 } else { fitting(&GEMV_ROWS) };
            let (by_ids, subgroup) = (ids.is_some(), variants.subgroups);
            let turns = if rows == 1 { tile.turns(params.inputs.div_ceil(8)) } else { None };
            let kernel = ProductShaderKind::Gemv { rows, tile, by_ids, subgroup, turns };
            (kernel, params.outputs.div_ceil(tile.workgroup_outputs()), rows)
        } else {
            let (tile, form) = (GemmTile::of(rows), form.with(quantized.is_some()));
            let kernel = ProductShaderKind::Gemm { tile, sorted: false, form };
            (kernel, params.outputs.div_ceil(tile.outputs), tile.rows)
        };
        let inputs = match (&quantized, self.part.transposed) {
            (Some(_), _) => InputAccess::Integers,
            (None, _) if in_kernel => InputAccess::Quantized,
            (None, true) => InputAccess::Elements,
            (None, false) => params.floats(),
        };
        let bound = |slot| match slot {
            BindingSlot::Input => Some(items.x.binding.clone()),
            BindingSlot::Output => Some(items.y.binding.clone()),
            BindingSlot::Rows => ids.cloned(),
            _ => None,
        };
        for rows in calls(&items.rows, items.slots, rows_each) {
            let groups = folded(across, rows.len().div_ceil(rows_each) * items.slots, &self.device)?;
            let params = ProductParams { rows: (rows.start, rows.len()), ..params };
            self.call((kernel, inputs), chunk, params, &bound, groups)?;
        }
        // After the calls: the blocks are valid only directly after the last one.
        self.keep(quantized.as_ref());
        Ok(())
    }

    /// Whether each workgroup quantizes the inputs by itself.
    fn quantizes_in_kernel(&self, params: &ProductParams) -> bool {
        // For one row, the repeated work costs less than a separate call.
        let few = params.rows.1 == 1 && params.outputs <= MAX_QUANTIZING_OUTPUTS;
        few && self.weight.products.variants.subgroups.is_some() && params.floats() == InputAccess::Vectors
    }

    /// Records that the quantized inputs are valid after the last call.
    fn keep(&self, quantized: Option<&QuantizedItems>) {
        if let Some(quantized) = quantized {
            self.weight.products.keep(self.commands, quantized);
        }
    }
}

/// Cuts rows into calls. A workgroup computes `each` rows of one slot, and the workgroups of a call
/// must fit one dimension.
fn calls(rows: &Range<usize>, slots: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    // At least one row per call. `folded` refuses more slots than a dimension has workgroups.
    let (end, max_rows) = (rows.end, (GRID_WIDTH / slots).max(1) * each);
    rows.clone().step_by(max_rows).map(move |first| first..end.min(first + max_rows))
}

/// Multiplies items by a part of a weight. With [`SlotMatrix::ByIds`], each item reads the weights
/// by itself, which suits few rows. For more rows see [`multiply_sorted_into`].
///
/// # Errors
/// If a matrix does not exist, for transposed products by ids, for sizes beyond 32 bits, or if the
/// device refuses a call.
pub(crate) fn multiply(
    commands: &mut Commands,
    (weight, part): (&DeviceWeight, &WeightSlice),
    items: &ProductItems,
    matrices: &SlotMatrix,
) -> Result<(), GpuError> {
    multiply_into(commands, (weight, part), items, matrices, (ProductEpilogue::Store, 0.0))
}

/// As [`multiply`], with an epilogue and the factor of [`ProductEpilogue::Add`].
///
/// # Errors
/// As for [`multiply`]. Also for transposed products with another epilogue than
/// [`ProductEpilogue::Store`].
pub(crate) fn multiply_into(
    commands: &mut Commands,
    (weight, part): (&DeviceWeight, &WeightSlice),
    items: &ProductItems,
    matrices: &SlotMatrix,
    keep: (ProductEpilogue, f32),
) -> Result<(), GpuError> {
    let mut product = WeightProduct::new(commands, weight, part)?;
    product.keep = keep;
    if part.transposed && keep.0 != ProductEpilogue::Store {
        return Err(refused(&product.device, format!("a transposed product with {:?}", keep.0)));
    }
    if items.rows.is_empty() || items.slots == 0 {
        return Ok(());
    }
    let all = weight.shape.matrices;
    let wanted = match matrices {
        SlotMatrix::One => 0..1,
        SlotMatrix::PerSlot(first) => *first..first.saturating_add(items.slots),
        // Only the device knows the ids, so any matrix may be among them.
        SlotMatrix::ByIds { .. } => 0..all,
    };
    // Each chunk would have a partial sum of every result.
    let split = part.transposed && weight.chunks.len() > 1 && all == 1;
    if wanted.end > all || split || (part.transposed && matches!(matrices, SlotMatrix::ByIds { .. })) {
        let kind = if part.transposed { "transposed" } else { "plain" };
        let problem = format!("matrices {wanted:?} of {all}, {kind}, in {} buffers", weight.chunks.len());
        return Err(refused(&product.device, problem));
    }
    for chunk in &weight.chunks {
        let Some(params) = product.params(chunk) else { continue };
        let (first, count) = params.matrices;
        let here = wanted.start.max(first)..wanted.end.min(first + count);
        if here.is_empty() {
            continue;
        }
        // Number of results that earlier chunks compute, if rows of the only matrix are in several
        // chunks.
        let above = if part.transposed { 0 } else { params.scales.first_row - part.rows.start };
        let (slot, slots) = match matrices {
            SlotMatrix::PerSlot(_) => (here.start - wanted.start, here.len()),
            _ => (0, items.slots),
        };
        let (x, y) = (items.x.past(slot, 0), items.y.past(slot, above));
        let items = ProductItems { rows: items.rows.clone(), slots, x, y };
        match matrices {
            SlotMatrix::One => product.items(chunk, params, &items, None)?,
            SlotMatrix::PerSlot(_) => product.items(chunk, params.per_slot(here.start), &items, None)?,
            // The call has all items. Its shader skips those whose matrix is in another chunk.
            SlotMatrix::ByIds { ids, offset } => {
                product.items(chunk, ProductParams { ids: *offset, ..params }, &items, Some(ids))?;
            }
        }
    }
    Ok(())
}

/// As [`multiply_into`] by ids, over [sorted](super::sort::sort_items) items of the same rows. A
/// matrix is decoded once per tile of its items.
pub(crate) fn multiply_sorted_into(
    commands: &mut Commands,
    (weight, part): (&DeviceWeight, &WeightSlice),
    items: &ProductItems,
    sorted: &SortedItems,
    keep: (ProductEpilogue, f32),
) -> Result<(), GpuError> {
    let mut product = WeightProduct::new(commands, weight, part)?;
    product.keep = keep;
    if part.transposed {
        return Err(refused(&product.device, "a transposed product with experts".into()));
    }
    let tile = sorted.tile;
    let form = weight.gemm_form();
    let quantized = product.quantized(items, form == GemmForm::Integers)?;
    let (form, inputs) = (form.with(quantized.is_some()), quantized.as_ref().map(|_| InputAccess::Integers));
    let items = quantized.as_ref().map_or(items, |quantized| &quantized.items);
    let bound = |slot| match slot {
        BindingSlot::Input => Some(items.x.binding.clone()),
        BindingSlot::Output => Some(items.y.binding.clone()),
        BindingSlot::Rows => Some(sorted.order.clone()),
        BindingSlot::Tiles => Some(sorted.tiles.clone()),
        _ => None,
    };
    for chunk in &weight.chunks {
        let Some(params) = product.params(chunk) else { continue };
        let y = items.y.past(0, params.scales.first_row - part.rows.start);
        let params = ProductParams { y: y.address, ..params.of_items(items) };
        // Workgroups for the maximum number of tiles: the host does not know how many there are.
        let groups = folded(params.outputs.div_ceil(tile.outputs), sorted.count, &product.device)?;
        product.call(
            (ProductShaderKind::Gemm { tile, sorted: true, form }, inputs.unwrap_or_else(|| params.floats())),
            chunk,
            params,
            &bound,
            groups,
        )?;
        product.keep(quantized.as_ref());
    }
    Ok(())
}

/// Dequantizes rows of the first matrix: result i is row `ids[offset + i]`. If the row does not
/// exist, the result is unchanged.
pub(crate) fn gather(
    commands: &mut Commands,
    weight: &DeviceWeight,
    (ids, offset): (&ShaderBinding, u32),
    rows: usize,
    y: &RowAddress,
) -> Result<(), GpuError> {
    let part = WeightSlice { rows: 0..weight.shape.outputs, transposed: false };
    let mut product = WeightProduct::new(commands, weight, &part)?;
    let bound = |slot| match slot {
        BindingSlot::Output => Some(y.binding.clone()),
        BindingSlot::Rows => Some(ids.clone()),
        _ => None,
    };
    let octets = rows.saturating_mul(weight.shape.inputs.div_ceil(8));
    let groups = folded(octets.div_ceil(GATHER_THREADS), 1, &product.device)?;
    // Each chunk's call has all ids. Its shader leaves the results of rows in other chunks alone.
    for chunk in weight.chunks.iter().filter(|_| rows > 0) {
        let Some(params) = product.params(chunk).filter(|params| params.matrices.0 == 0) else { continue };
        let params = ProductParams { rows: (0, rows), slots: 1, y: y.address, ids: offset, ..params };
        product.call((ProductShaderKind::Gather, InputAccess::Elements), chunk, params, &bound, groups)?;
    }
    Ok(())
}
