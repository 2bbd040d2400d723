//! Lossless repacking of blocks whose size is not a multiple of four bytes, into two planes of
//! whole words, piece by piece during the upload.
//!
//! Rows of blocks without their scale `d` come first, then the `d` of all blocks in the same order.
//! The size does not change, and rows keep a constant stride, so parts of matrices are addressed as
//! in the file.

use super::layout::BlockLayout;
use crate::buffers::Buffer;
use crate::error::GpuError;

/// Blocks per piece: 256 KiB to 3.3 MiB.
// A multiple of four, so that the scales of a piece are whole words, even those of one byte.
const PIECE_BLOCKS: usize = 16 << 10;

/// Number of pieces after which the upload waits.
const PIECES: usize = 8;

/// Offset of the scales of `blocks` blocks: they follow the other bytes of all blocks.
pub(super) fn scales_at(layout: &BlockLayout, blocks: usize) -> usize {
    let (bytes, _) = layout.odd_scale().unwrap_or((0, 0));
    blocks * (layout.block_bytes() - bytes)
}

/// Writes blocks into a buffer of the same size.
pub(super) fn write(
    buffer: &Buffer,
    what: &str,
    layout: &BlockLayout,
    blocks: &[u8],
) -> Result<(), GpuError> {
    if buffer.device().hollow {
        return Ok(());
    }
    let (bytes, at) = layout.odd_scale().unwrap_or((0, 0));
    let (mut rest, mut scales) = (Vec::new(), Vec::new());
    let mut places = (0, scales_at(layout, blocks.len() / layout.block_bytes()));
    for (number, piece) in blocks.chunks(PIECE_BLOCKS * layout.block_bytes()).enumerate() {
        rest.clear();
        scales.clear();
        for block in piece.chunks_exact(layout.block_bytes()) {
            rest.extend_from_slice(&block[..at]);
            rest.extend_from_slice(&block[at + bytes..]);
            scales.extend_from_slice(&block[at..at + bytes]);
        }
        buffer.write(what, places.0 as u64, &rest)?;
        buffer.write(what, places.1 as u64, &scales)?;
        places = (places.0 + rest.len(), places.1 + scales.len());
        if number % PIECES == PIECES - 1 {
            // wgpu uploads pending writes with a submission. Waiting then frees the driver's copies
            // of them.
            buffer.device().queue.submit([]);
            buffer.device().wait()?;
        }
    }
    Ok(())
}
