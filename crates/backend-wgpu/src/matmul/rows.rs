//! Products of plain rows, the common case: one item per row, or several items that share a row.

use super::limits::too_large;
use super::product::{ProductEpilogue, ProductItems, RowAddress, SlotMatrix, WeightSlice, multiply_into};
use super::sort::{SortMemory, SortedItems, sort_items};
use super::weight::DeviceWeight;
use crate::buffers::Buffer;
use crate::commands::{Commands, ShaderBinding};
use crate::error::GpuError;

/// Rows of f32 in a buffer. Row r begins at element `first + r · stride`. The buffers of inputs and
/// of results must differ.
#[derive(Clone)]
pub(crate) struct BufferRows {
    /// The buffer, or a part of it.
    pub(crate) binding: ShaderBinding,
    /// Element at which the first row begins.
    pub(crate) first: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

impl BufferRows {
    /// A whole buffer of rows of `cols` elements.
    pub(crate) fn new(buffer: &Buffer, cols: usize) -> BufferRows {
        BufferRows { binding: ShaderBinding::from(buffer), first: 0, stride: cols }
    }

    /// The address of the rows as items with `slots` slots per row.
    fn place(&self, commands: &Commands, slots: usize, slot_stride: usize) -> Result<RowAddress, GpuError> {
        let word = |value: usize| u32::try_from(value).map_err(|_| too_large(commands.device(), value));
        // With a slot stride of 0, all slots of an item share one row.
        let row = if slot_stride == 0 { self.stride } else { self.stride.saturating_mul(slots) };
        let address = [word(self.first)?, word(row)?, word(slot_stride)?];
        Ok(RowAddress { binding: self.binding.clone(), address })
    }
}

/// All rows of the weight's matrices.
fn whole(weight: &DeviceWeight) -> WeightSlice {
    WeightSlice { rows: 0..weight.shape.outputs, transposed: false }
}

/// The items of (row, expert) pairs: pair i reads row i / `share` of `x` and writes row i of `y`.
pub(crate) fn pairs(
    commands: &Commands,
    (x, share): (&BufferRows, usize),
    count: usize,
    y: &BufferRows,
) -> Result<ProductItems, GpuError> {
    let slots = share.max(1);
    let x = x.place(commands, slots, 0)?;
    Ok(ProductItems { rows: 0..count / slots, slots, x, y: y.place(commands, slots, y.stride)? })
}

/// Multiplies `rows` rows of `x` by a weight with one matrix, into rows of `y`.
pub(crate) fn matmul(
    commands: &mut Commands,
    weight: &DeviceWeight,
    x: &BufferRows,
    y: &BufferRows,
    rows: usize,
    keep: (ProductEpilogue, f32),
) -> Result<(), GpuError> {
    let items = pairs(commands, (x, 1), rows, y)?;
    multiply_into(commands, (weight, &whole(weight)), &items, &SlotMatrix::One, keep)
}

/// Sorts pairs by expert, for any number of products over the same ids. Pairs of one expert keep
/// their order.
pub(crate) fn sort_by_expert(
    commands: &mut Commands,
    memory: &SortMemory,
    (ids, offset, count): (&ShaderBinding, u32, usize),
    experts: usize,
) -> Result<SortedItems, GpuError> {
    sort_items(commands, memory, (ids, offset), (&(0..count), 1), experts)
}
