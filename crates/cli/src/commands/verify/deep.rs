//! `latent verify --weights`: dequantizes and checks every weight with all threads.

use crate::{interrupt, progress};
use anyhow::{Result, bail};
use latent_engine::EngineError;
use latent_formats::{Checkpoint, FormatError, TensorInfo};
use latent_quant::Statistics;
use latent_types::TensorType;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes per work item: large enough for sequential reads, small enough to balance threads.
const WORK_ITEM_BYTES: usize = 1 << 20;

/// A tensor and its statistics.
pub(super) struct DeepTensor {
    pub(super) name: String,
    pub(super) ty: TensorType,
    pub(super) shape: Vec<usize>,
    /// `None` for types that cannot be dequantized.
    pub(super) statistics: Option<Statistics>,
}

/// All tensors of a file.
pub(super) struct DeepReport {
    pub(super) tensors: Vec<DeepTensor>,
    pub(super) bytes: u64,
    pub(super) numbers: u64,
    pub(super) threads: usize,
    pub(super) took: Duration,
}

/// A work item: some rows of one tensor.
struct RowRange {
    tensor: usize,
    first: usize,
    rows: usize,
}

/// Reads all tensors of `checkpoint` with `threads` threads.
pub(super) fn look(checkpoint: &Checkpoint, threads: usize) -> Result<DeepReport> {
    let tensors = checkpoint.tensors();
    let pieces = pieces(tensors);
    let mut left: Vec<AtomicUsize> = Vec::new();
    left.resize_with(tensors.len(), AtomicUsize::default);
    // No thread shares the counters yet, so plain access suffices.
    pieces.iter().for_each(|piece| *left[piece.tensor].get_mut() += 1);
    let found: Vec<Mutex<Statistics>> = tensors.iter().map(|_| Mutex::default()).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failed: Mutex<Option<FormatError>> = Mutex::default();
    let bar = progress::bar(true, "reading");
    bar.set_length(pieces.len() as u64);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(pieces.len()).min(latent_threads::MAX_THREADS) {
            scope.spawn(|| {
                let mut numbers = Vec::new();
                // Relaxed: the counter only distributes work items.
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if interrupt::asked() || stop.load(Ordering::Relaxed) {
                        stop.store(true, Ordering::Relaxed);
                        return;
                    }
                    let info = &tensors[piece.tensor];
                    let statistics = read(checkpoint, info, piece, &mut numbers).unwrap_or_else(|error| {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        stop.store(true, Ordering::Relaxed);
                        Statistics::default()
                    });
                    found[piece.tensor].lock().unwrap_or_else(PoisonError::into_inner).merge(&statistics);
                    // The thread that finishes a tensor drops its pages, so that a model larger
                    // than memory does not evict other programs' pages. AcqRel orders the reads of
                    // the other threads before that.
                    if left[piece.tensor].fetch_sub(1, Ordering::AcqRel) == 1 {
                        checkpoint.drop_pages(&info.name, 0..usize::MAX);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    let took = start.elapsed();
    bar.finish_and_clear();
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    if stop.into_inner() {
        bail!(EngineError::Stopped);
    }
    let looked = tensors.iter().zip(found).map(|(info, statistics)| DeepTensor {
        name: info.name.clone(),
        ty: info.ty,
        shape: info.shape.clone(),
        statistics: latent_quant::can_decode(info.ty)
            .then(|| statistics.into_inner().unwrap_or_else(PoisonError::into_inner)),
    });
    let tensors: Vec<DeepTensor> = looked.collect();
    let read = |tensor: &&DeepTensor| tensor.statistics.is_some();
    let bytes =
        checkpoint.tensors().iter().filter(|t| latent_quant::can_decode(t.ty)).map(|t| t.bytes as u64).sum();
    let numbers = tensors.iter().filter(read).filter_map(|t| t.statistics.as_ref()).map(|s| s.numbers).sum();
    Ok(DeepReport { tensors, bytes, numbers, threads, took })
}

/// Work items: whole rows of every tensor that can be dequantized.
fn pieces(tensors: &[TensorInfo]) -> Vec<RowRange> {
    let mut pieces = Vec::new();
    for (tensor, info) in tensors.iter().enumerate().filter(|(_, info)| latent_quant::can_decode(info.ty)) {
        let (rows, row) = rows(info);
        let each = (WORK_ITEM_BYTES / row.max(1)).max(1);
        let starts = (0..rows).step_by(each);
        pieces.extend(starts.map(|first| RowRange { tensor, first, rows: each.min(rows - first) }));
    }
    pieces
}

/// Number of rows of a tensor, and bytes per row.
fn rows(info: &TensorInfo) -> (usize, usize) {
    let cols = info.shape.last().copied().unwrap_or(1);
    let row = info.ty.row_bytes(cols).unwrap_or(0);
    (info.bytes.checked_div(row).unwrap_or(0), row)
}

/// Dequantizes the rows of a work item; `numbers` is scratch.
fn read(
    checkpoint: &Checkpoint,
    info: &TensorInfo,
    piece: &RowRange,
    numbers: &mut Vec<f32>,
) -> Result<Statistics, FormatError> {
    let mut statistics = Statistics::default();
    let (Some(tensor), Some(decode)) = (checkpoint.rows(&info.name)?, latent_quant::decoder(info.ty)) else {
        return Ok(statistics);
    };
    let (_, row) = rows(info);
    numbers.clear();
    numbers.resize(info.shape.last().copied().unwrap_or(1), 0.0);
    let mut scratch = Vec::new();
    let bytes = tensor.read(piece.first..piece.first + piece.rows, &mut scratch);
    for (i, bytes) in bytes.chunks_exact(row).enumerate() {
        decode(bytes, numbers);
        statistics.add(info.ty, (piece.first + i) as u64, bytes, numbers);
    }
    Ok(statistics)
}
