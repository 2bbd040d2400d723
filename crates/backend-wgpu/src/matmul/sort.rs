//! Sorts items by their matrix (expert) on the device.

use super::limits::{refused, too_large};
use super::tiles::{GEMM, GemmTile, MAX_EXPERTS, SORT_THREADS};
use super::wgsl::constants;
use crate::buffers::Buffer;
use crate::commands::{Commands, GRID_WIDTH, ShaderBinding};
use crate::device::Device;
use crate::error::GpuError;
use std::ops::Range;
use std::sync::Arc;

/// Buffers of a sort: the sorted pairs, and tiles of pairs of one matrix.
pub(crate) struct SortMemory {
    order: Buffer,
    tiles: Buffer,
}

impl SortMemory {
    /// Bytes of both buffers for at most `pairs` pairs.
    pub(crate) fn bytes(pairs: usize, experts: usize) -> [u64; 2] {
        [4 * pairs as u64, 16 * tiles(pairs, experts, GEMM[0]) as u64]
    }

    /// Allocates buffers of these sizes in bytes.
    pub(crate) fn new(device: &Arc<Device>, [order, tiles]: [u64; 2]) -> Result<SortMemory, GpuError> {
        Ok(SortMemory {
            order: Buffer::new(device, "rows sorted by expert", order)?,
            tiles: Buffer::new(device, "tiles of experts", tiles)?,
        })
    }
}

/// Maximum number of tiles of `pairs` pairs. The last tile of each matrix may be partly filled.
fn tiles(pairs: usize, experts: usize, tile: GemmTile) -> usize {
    pairs / tile.rows + experts.min(pairs)
}

/// Maximum pairs whose tiles fit one dimension of a call, for every tile size.
// The smallest tile needs the most tiles: `pairs / rows`, and one partly filled tile per expert.
pub(crate) const MAX_PAIRS: usize = (GRID_WIDTH - MAX_EXPERTS) * GEMM[0].rows;

/// (row, slot) pairs, sorted by their matrix.
pub(crate) struct SortedItems {
    pub(super) order: ShaderBinding,
    pub(super) tiles: ShaderBinding,
    /// Maximum number of tiles.
    // The host does not know the actual number, so calls have a workgroup for each possible tile,
    // and unused tiles have 0 rows.
    pub(super) count: usize,
    pub(super) tile: GemmTile,
}

/// Sorts the items of some rows by their matrix. The result is valid for products of these rows
/// until the next sort in the same memory. Items of one matrix keep their order.
///
/// # Errors
/// If there are more than 1024 matrices, if the buffers are too small, for sizes beyond 32 bits, or
/// if the device refuses a call.
pub(crate) fn sort_items(
    commands: &mut Commands,
    memory: &SortMemory,
    (ids, offset): (&ShaderBinding, u32),
    (rows, slots): (&Range<usize>, usize),
    experts: usize,
) -> Result<SortedItems, GpuError> {
    let device = Arc::clone(commands.device());
    if experts > MAX_EXPERTS {
        return Err(too_large(&device, experts));
    }
    let pairs = rows.len().saturating_mul(slots);
    // The tile that fits an expert's rows if all experts are used equally.
    let tile = GemmTile::of(pairs.div_ceil(experts.max(1)));
    let count = tiles(pairs, experts, tile);
    if memory.order.bytes() < 4 * pairs as u64 || memory.tiles.bytes() < 16 * count as u64 {
        return Err(refused(&device, format!("{pairs} pairs of a row and an expert in memory for fewer")));
    }
    let (order, tiles) = (ShaderBinding::from(&memory.order), ShaderBinding::from(&memory.tiles));
    let pipeline = device.compiled("sort_by_expert", sort_source(tile))?;
    let word = |value: usize| u32::try_from(value).map_err(|_| too_large(&device, value));
    let first = word(rows.start.saturating_mul(slots))?.wrapping_add(offset);
    let params = [word(pairs)?, word(experts)?, word(count)?, first];
    // One workgroup, since barriers do not span workgroups.
    commands.call(&pipeline, [ids.clone(), order.clone(), tiles.clone()], &params, [1, 1, 1]);
    Ok(SortedItems { order, tiles, count, tile })
}

/// The shader that sorts into tiles of this size.
pub(super) fn sort_source(tile: GemmTile) -> String {
    let mut source = String::new();
    let sizes = [("THREADS", SORT_THREADS), ("MAX_EXPERTS", MAX_EXPERTS), ("TILE_ROWS", tile.rows)];
    constants(&mut source, sizes);
    source.push_str(include_str!("wgsl/sort_by_expert.wgsl"));
    source
}
