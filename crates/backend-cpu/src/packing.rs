//! Writes packed files: tensors that the plans read in tiles are packed, all others are copied.

use crate::CpuBackend;
use crate::loader::tiled_tensors;
use crate::pack::TileMatrices;
use latent_backend::{Backend, BackendError};
use latent_formats::pack::{PackWriter, TiledTensor};
use latent_formats::{Checkpoint, OutputError, OutputFile, TensorInfo, TensorRows};
use latent_graph::passes::{BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Stage, StageOptions};
use latent_quant::tiles::{ROWS, TileLayout};
use latent_threads::{ThreadPool, Topology};
use latent_types::CacheType;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

/// Bytes that are packed and written per piece, unless one tile takes more. It bounds the memory
/// that packing takes, whatever the model's size.
const PIECE: usize = 32 << 20;

/// The result of writing a packed file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedFile {
    pub bytes: u64,
    /// Tensors with NaN or infinite elements or block scales, and the number of these. They are
    /// packed unchanged.
    pub not_finite: Vec<(String, u64)>,
}

/// Packs the model into the file `out`, with `threads` threads (none: one per core). The file
/// appears under its name when it is complete. If packing fails, no file remains. `progress` is
/// called with the bytes written and the total, and cancels by returning false.
///
/// # Errors
/// If the model cannot be run or the file cannot be written; [`BackendError::Cancelled`].
pub fn pack(
    checkpoint: &Checkpoint,
    out: &Path,
    threads: Option<usize>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<PackedFile, BackendError> {
    let stages = default_stages(checkpoint)?;
    // Derived weights are written in addition to the tensors that they are computed from: exact
    // precision reads the latter.
    let derived = latent_backend::with_derived_weights(checkpoint, &stages)?;
    let checkpoint = derived.as_ref().unwrap_or(checkpoint);
    let layouts = layouts(&stages);
    let tiles: Vec<Option<TiledTensor>> =
        checkpoint.tensors().iter().map(|info| layouts.get(&*info.name).copied()).collect();
    let writer = PackWriter::new(checkpoint, &tiles)?;
    let total = writer.file_bytes();
    let threads = threads
        .unwrap_or_else(|| latent_threads::threads_for(&Topology::detect(), latent_threads::parallelism()));
    let thread_pool =
        ThreadPool::new(threads).map_err(|error| BackendError::System { what: "starting threads", error })?;
    let failed = |error| pack_io(out, total, error);
    let unwritten = |error: OutputError| match error {
        OutputError::Io { error, .. } => failed(error),
        refused => BackendError::Output(refused),
    };
    let mut file = OutputFile::create(out).map_err(unwritten)?;
    let mut packing = FilePacker {
        checkpoint,
        tiles: &tiles,
        thread_pool,
        buffer: Vec::new(),
        progress,
        done: 0,
        total,
        cancelled: false,
        not_finite: Vec::new(),
    };
    let written = writer.write(&mut file, |index, out| packing.write_tensor(index, out));
    // Before `written`, which is an I/O error "stopped" then.
    if packing.cancelled {
        return Err(BackendError::Cancelled);
    }
    written.map_err(failed)?;
    file.finish().map_err(unwritten)?;
    Ok(PackedFile { bytes: total, not_finite: packing.not_finite })
}

fn pack_io(path: &Path, total: u64, error: io::Error) -> BackendError {
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let hint = if full {
        format!(" (the packed file takes {})", latent_types::format_bytes(total))
    } else {
        String::new()
    };
    BackendError::PackIo { path: path.to_owned(), error, hint }
}

/// State of a packed file while it is being written.
struct FilePacker<'a> {
    checkpoint: &'a Checkpoint,
    /// The tile layout of each tensor that is packed.
    tiles: &'a [Option<TiledTensor>],
    thread_pool: ThreadPool,
    /// The tiles of a piece.
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
    /// Bytes written.
    done: u64,
    /// Bytes of the whole file.
    total: u64,
    cancelled: bool,
    not_finite: Vec<(String, u64)>,
}

impl FilePacker<'_> {
    fn write_tensor(&mut self, index: usize, out: &mut dyn Write) -> io::Result<()> {
        let FilePacker { checkpoint, tiles, thread_pool, buffer, progress, done, total, cancelled, .. } =
            self;
        let mut write = |bytes: &[u8]| {
            out.write_all(bytes)?;
            *done += bytes.len() as u64;
            *cancelled = !progress(*done, *total);
            if *cancelled { Err(io::Error::other("stopped")) } else { Ok(()) }
        };
        let info = &checkpoint.tensors()[index];
        let Some(rows) = checkpoint.rows(&info.name).map_err(io::Error::other)? else { return Ok(()) };
        let mut bad = 0;
        match tiles[index] {
            None => each_piece(info, &rows, &mut |piece| {
                bad += latent_quant::not_finite(info.ty, piece);
                write(piece)
            })?,
            Some(tiles) => {
                let mut write_piece = |piece: &[u8], tiles: &[u8]| {
                    bad += latent_quant::not_finite(info.ty, piece);
                    write(tiles)
                };
                pack_tensor(info, &rows, tiles.rows, buffer, thread_pool, &mut write_piece)?;
            }
        }
        // Each tensor is read once; without this, pages of the whole source file would accumulate.
        checkpoint.drop_pages(&info.name, 0..usize::MAX);
        if bad > 0 {
            self.not_finite.push((info.name.clone(), bad));
        }
        Ok(())
    }
}

/// Passes the bytes of a tensor to `write` in pieces of whole rows: [`PIECE`] bytes, or one row if
/// that is larger.
fn each_piece(
    info: &TensorInfo,
    rows: &TensorRows<'_>,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (count, step) = (info.rows(), (PIECE / rows.row_bytes().max(1)).max(1));
    let mut scratch = Vec::new();
    (0..count)
        .step_by(step)
        .try_for_each(|first| write(rows.read(first..(first + step).min(count), &mut scratch)))
}

/// The plans of the default precision.
fn default_stages(checkpoint: &Checkpoint) -> Result<Vec<Stage>, BackendError> {
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let backend = CpuBackend::new();
    let bind = BindOptions { precision: Precision::Default, tier: backend.isa(None)?, cache: CacheType::F16 };
    // The layouts do not depend on the batch size.
    let options = StageOptions {
        mla: MlaChoice::Auto,
        form: CacheForm::Latent,
        bind,
        max_batch_tokens: 512,
        mtp: false,
    };
    let circuit = Circuit::named(&config.circuit)?;
    let tensors = CheckpointTensors(checkpoint);
    Ok(Stage::of_model(circuit, &config, &tensors, backend.target(), &options)?)
}

/// The tile layouts of the tensors that these plans read in tiles. They depend on formats only, so
/// a packed file can be used on any machine.
fn layouts(stages: &[Stage]) -> HashMap<String, TiledTensor> {
    let tiled = tiled_tensors(stages);
    let mut layouts = HashMap::new();
    for weight in stages.iter().flat_map(Stage::weights) {
        let layout = TileLayout::new(weight.ty, weight.inputs());
        let Some(layout) = layout.filter(|_| tiled.contains(weight.key())) else {
            continue;
        };
        let rows = weight.outputs();
        // Experts in tensors of their own (one part each) are packed one matrix per tensor.
        let matrices = if weight.parts.len() > 1 { 1 } else { weight.stacked() };
        let tiles = TiledTensor { rows, bytes: matrices * layout.matrix_bytes(rows) };
        layouts.extend(weight.parts.iter().map(|part| (part.tensor.clone(), tiles)));
    }
    layouts
}

/// Called with a piece of a tensor: its rows, and the tiles packed from them.
type PieceWriter<'a> = dyn FnMut(&[u8], &[u8]) -> io::Result<()> + 'a;

/// Packs a tensor of matrices with `outputs` rows each, piece by piece.
fn pack_tensor(
    info: &TensorInfo,
    rows: &TensorRows<'_>,
    outputs: usize,
    buffer: &mut Vec<u8>,
    thread_pool: &mut ThreadPool,
    write: &mut PieceWriter<'_>,
) -> io::Result<()> {
    let inputs = info.shape.last().copied().unwrap_or(0);
    let count = info.rows() / outputs.max(1);
    let Some(matrices) = TileMatrices::new(info.ty, outputs, inputs, count, std::slice::from_ref(rows))
    else {
        return Err(io::Error::other(format!("{} has no tiles", info.ty)));
    };
    let tile = matrices.tile_bytes();
    let step = (PIECE / tile).max(1);
    let all = matrices.all_tiles();
    let tiles = (all / count.max(1)).max(1);
    // The last tile of a matrix may have fewer than 16 rows.
    let row = |tile: usize| tile / tiles * outputs + (tile % tiles * ROWS).min(outputs);
    let mut scratch = Vec::new();
    for first in (0..all).step_by(step) {
        let count = step.min(all - first);
        buffer.resize(count * tile, 0);
        matrices.pack_some(first, buffer, thread_pool);
        write(rows.read(row(first)..row(first + count), &mut scratch), buffer)?;
    }
    Ok(())
}
