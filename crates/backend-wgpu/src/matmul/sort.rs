//! Items sorted by the matrix that they name, on the device.

use super::limits::too_large;
use super::tiles::{GemmTile, MAX_EXPERTS, SORT_THREADS};
use super::wgsl::constants;
use crate::buffers::Buffer;
use crate::commands::{Binding, Commands};
use crate::error::GpuError;
use std::ops::Range;
use std::sync::Arc;

/// Pairs of rows and slots, sorted on the device by the matrix that they name.
pub(crate) struct SortedItems {
    pub(super) order: Buffer,
    pub(super) tiles: Buffer,
    /// How many tiles there may be.
    pub(super) count: usize,
    pub(super) tile: GemmTile,
}

/// Sorts the items of some rows by the matrix that they name, for any number of products of these rows and ids. Items of one matrix keep their order.
///
/// # Errors
/// More than 1024 matrices; sizes beyond 32 bits; what the device refuses.
pub(crate) fn sort_items(
    commands: &mut Commands,
    (ids, offset): (&Binding, u32),
    (rows, slots): (&Range<usize>, usize),
    experts: usize,
) -> Result<SortedItems, GpuError> {
    let device = Arc::clone(commands.device());
    if experts > MAX_EXPERTS {
        return Err(too_large(&device, experts));
    }
    let pairs = rows.len().saturating_mul(slots);
    // an expert's share, if all are chosen as often
    let tile = GemmTile::of(pairs.div_ceil(experts.max(1)));
    let count = pairs / tile.rows + experts.min(pairs);
    let order = Buffer::new(&device, "rows sorted by expert", 4 * pairs as u64)?;
    let tiles = Buffer::new(&device, "tiles of experts", 16 * count as u64)?;
    let pipeline = device.compiled("sort_by_expert", sort_source(tile))?;
    let word = |value: usize| u32::try_from(value).map_err(|_| too_large(&device, value));
    let first = word(rows.start.saturating_mul(slots))?.wrapping_add(offset);
    let params = [word(pairs)?, word(experts)?, word(count)?, first];
    commands.call(&pipeline, [ids.clone(), (&order).into(), (&tiles).into()], &params, [1, 1, 1]);
    Ok(SortedItems { order, tiles, count, tile })
}

/// The shader that sorts, for tiles of this many rows.
pub(super) fn sort_source(tile: GemmTile) -> String {
    let mut source = String::new();
    let sizes = [("THREADS", SORT_THREADS), ("MAX_EXPERTS", MAX_EXPERTS), ("TILE_ROWS", tile.rows)];
    constants(&mut source, sizes);
    source.push_str(include_str!("wgsl/sort_by_expert.wgsl"));
    source
}
