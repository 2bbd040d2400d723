//! Loaded weights: tiles, or slices of the mapped file.
#![allow(
    unsafe_code,
    reason = "slices of the mapped file are stored with the checkpoint that keeps them alive"
)]

use crate::pack::{PackedMatrices, TileMatrices};
use crate::source_pages::SourcePages;
use crate::weight_arena::WeightArena;
use latent_backend::BackendError;
use latent_formats::{Checkpoint, TensorInfo, TensorRows};
use latent_graph::circuit::{Weight, WeightPart};
use latent_kernels::{BlockScales, WeightMatrix};
use latent_quant::tiles::TileLayout;
use latent_threads::ThreadPool;
use latent_types::{TensorType, WeightLayout};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// One weight, ready for kernels.
pub struct LoadedWeight {
    ty: TensorType,
    outputs: usize,
    inputs: usize,
    /// One for all matrices, or one per matrix.
    parts: Vec<MappedBytes>,
    /// Whether `parts` are tiles, which only packed files have.
    tiles: bool,
    /// All matrices in tiles, instead of `parts`.
    packed: Option<PackedMatrices>,
    /// Scale of each matrix's results; empty where all are 1.
    scales: Vec<f32>,
    /// Block scales of all matrices (FP8); empty if the format has no block scales.
    block_scales: Vec<f32>,
    /// Rows and columns of such a block.
    block: (usize, usize),
    /// The elements of a vector (norm weights, router bias), dequantized.
    vector: Vec<f32>,
}

/// Bytes of the mapped file, with the checkpoint that keeps the map alive, or a copy of rows that lie in pieces there.
struct MappedBytes {
    start: *const u8,
    len: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are never written, and `_keep` owns them.
unsafe impl Send for MappedBytes {}
// SAFETY: as for Send.
unsafe impl Sync for MappedBytes {}

impl MappedBytes {
    fn get(&self) -> &[u8] {
        // SAFETY: taken from a slice of what `_keep` owns, which lives as long.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    fn copied(bytes: Vec<u8>) -> MappedBytes {
        let (start, len) = (bytes.as_ptr(), bytes.len());
        MappedBytes { start, len, _keep: Arc::new(bytes) }
    }
}

impl LoadedWeight {
    /// Takes the tensors of `weight` from the source, and packs them into `memory` on all workers where
    /// `layout` asks for tiles. Tiles of a packed file are used in place whatever `layout` says: kernels that
    /// read rows gather them from tiles, with the same elements.
    ///
    /// # Errors
    /// [`BackendError::NotDecodable`] for a format that cannot be computed with; a tensor or scale that is
    /// missing; tiles of another shape than the weight's; memory that the system refuses.
    pub fn load(
        weight: &Weight,
        source: &SourcePages,
        layout: WeightLayout,
        memory: &mut WeightArena,
        thread_pool: &mut ThreadPool,
    ) -> Result<LoadedWeight, BackendError> {
        let checkpoint = source.checkpoint();
        let mut loaded = LoadedWeight {
            ty: weight.ty,
            outputs: weight.outputs(),
            inputs: weight.inputs(),
            parts: Vec::with_capacity(weight.parts.len()),
            tiles: tiles_in_file(weight, checkpoint)?,
            packed: None,
            scales: Vec::new(),
            block_scales: Vec::new(),
            block: checkpoint.fp8_block()?,
            vector: Vec::new(),
        };
        let file = checkpoint.display_name();
        if !latent_quant::can_decode(weight.ty) {
            let tensor = weight.parts.first().map(|p| p.tensor.clone()).unwrap_or_default();
            return Err(BackendError::NotDecodable { file, tensor, ty: weight.ty });
        }
        let mut rows = Vec::with_capacity(weight.parts.len());
        for part in &weight.parts {
            rows.push(checkpoint.rows(&part.tensor)?.ok_or_else(|| missing(checkpoint, &part.tensor))?);
            match checkpoint.tensor(&part.tensor) {
                Some(tensor) => {
                    let (start, len) = (tensor.data.as_ptr(), tensor.data.len());
                    let keep: Arc<Checkpoint> = Arc::clone(checkpoint);
                    loaded.parts.push(MappedBytes { start, len, _keep: keep });
                }
                None if weight.cut.is_none() => check_joined(part, weight, checkpoint)?,
                // formats without tiles are read in rows
                None if TileLayout::new(weight.ty, weight.inputs()).is_none() => {
                    let count = checkpoint.info(&part.tensor).map_or(0, TensorInfo::rows);
                    let mut bytes = Vec::new();
                    if let Some(rows) = rows.last() {
                        rows.read(0..count, &mut bytes);
                    }
                    loaded.parts.push(MappedBytes::copied(bytes));
                }
                None => {}
            }
            loaded.take_scales(part, weight, checkpoint)?;
        }
        if weight.shape.len() == 1 {
            loaded.vector = decode(weight.ty, loaded.parts[0].get(), loaded.inputs, &file)?;
        } else if layout == WeightLayout::Tiles && !loaded.tiles {
            loaded.pack(weight, &rows, source, memory, thread_pool)?;
        }
        Ok(loaded)
    }

    /// Packs all matrices and releases the file's pages.
    fn pack(
        &mut self,
        weight: &Weight,
        rows: &[TensorRows<'_>],
        source: &SourcePages,
        memory: &mut WeightArena,
        thread_pool: &mut ThreadPool,
    ) -> Result<(), BackendError> {
        let Some(matrices) = TileMatrices::new(self.ty, self.outputs, self.inputs, weight.matrices(), rows)
        else {
            return Ok(());
        };
        let bytes = self.outputs * self.ty.row_bytes(self.inputs).unwrap_or(0);
        let went_through = |m: usize, part: Range<usize>| match &weight.parts[..] {
            [all] => source.packed(&all.tensor, m * bytes + part.start..m * bytes + part.end),
            parts => source.packed(&parts[m].tensor, part),
        };
        self.packed = Some(PackedMatrices::new(&matrices, memory, thread_pool, &went_through)?);
        self.parts.clear();
        weight.parts.iter().for_each(|part| source.done(&part.tensor));
        Ok(())
    }

    /// Adds the scales of one tensor to those of blocks or of matrices.
    fn take_scales(
        &mut self,
        part: &WeightPart,
        weight: &Weight,
        checkpoint: &Arc<Checkpoint>,
    ) -> Result<(), BackendError> {
        let Some(name) = &part.scale else {
            if !self.scales.is_empty() {
                self.scales.push(1.0);
            }
            return Ok(());
        };
        let info = checkpoint.info(name).ok_or_else(|| missing(checkpoint, name))?;
        if info.tile_rows.is_some() {
            return Err(misplaced(checkpoint, name, "holds scales, which cannot be stored in tiles".into()));
        }
        let rows = checkpoint.rows(name)?.ok_or_else(|| missing(checkpoint, name))?;
        let count: usize = info.shape.iter().product();
        let mut scratch = Vec::new();
        let bytes = rows.read(0..info.rows(), &mut scratch);
        let scales = decode(info.ty, bytes, count, &checkpoint.display_name())?;
        if weight.ty == TensorType::F8_E4M3 {
            if count != self.matrix_scales() {
                let problem = format!("holds {count} scales, expected {}", self.matrix_scales());
                return Err(misplaced(checkpoint, name, problem));
            }
            self.block_scales.extend(scales);
            return Ok(());
        }
        let matrices = if weight.parts.len() > 1 { 1 } else { weight.stacked() };
        let each = |m: usize| scales.get(m).or(scales.first()).copied().unwrap_or(1.0);
        self.scales.extend((0..matrices).map(each));
        Ok(())
    }

    /// Number of block scales of one matrix.
    fn matrix_scales(&self) -> usize {
        self.outputs.div_ceil(self.block.0) * self.inputs.div_ceil(self.block.1)
    }

    /// Format of the weight.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Outputs of one matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs of one matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The matrix at `index` as the file stores it, in rows or tiles.
    fn bytes_of(&self, index: usize) -> &[u8] {
        let layout = TileLayout::new(self.ty, self.inputs).filter(|_| self.tiles);
        let rows = || self.ty.row_bytes(self.inputs).unwrap_or(0) * self.outputs;
        let bytes = layout.map_or_else(rows, |layout| layout.matrix_bytes(self.outputs));
        match &self.parts[..] {
            [all] => &all.get()[index * bytes..(index + 1) * bytes],
            parts => parts[index].get(),
        }
    }

    /// The matrix at `index` (an expert, a head).
    pub fn matrix(&self, index: usize) -> WeightMatrix<'_> {
        let matrix = self.plain_matrix(index);
        if self.block_scales.is_empty() {
            return matrix;
        }
        let count = self.matrix_scales();
        let numbers = &self.block_scales[index * count..(index + 1) * count];
        let scales = BlockScales { numbers, rows: self.block.0, cols: self.block.1 };
        matrix.with_scales(scales).expect("scales that were counted while loading")
    }

    /// As [`matrix`](Self::matrix), without block scales.
    fn plain_matrix(&self, index: usize) -> WeightMatrix<'_> {
        let (ty, outputs, inputs) = (self.ty, self.outputs, self.inputs);
        let matrix = match &self.packed {
            Some(packed) => WeightMatrix::from_tiles(ty, packed.matrix(index), outputs, inputs),
            None if self.tiles => WeightMatrix::from_tiles(ty, self.bytes_of(index), outputs, inputs),
            None => WeightMatrix::from_rows(ty, self.bytes_of(index), outputs, inputs),
        };
        matrix.expect("bytes that were counted while loading")
    }

    /// Scale of the results of the matrix at `index`.
    pub fn scale(&self, index: usize) -> f32 {
        self.scales.get(index).copied().unwrap_or(1.0)
    }

    /// The elements of a vector.
    pub fn vector(&self) -> &[f32] {
        &self.vector
    }
}

/// Checks that a weight joined from several tensors is a matrix of these sides, in a format with
/// tiles.
fn check_joined(part: &WeightPart, weight: &Weight, checkpoint: &Checkpoint) -> Result<(), BackendError> {
    let sides = [weight.outputs(), weight.inputs()];
    let info = checkpoint.info(&part.tensor).ok_or_else(|| missing(checkpoint, &part.tensor))?;
    if weight.shape.len() > 1 && info.shape == sides && TileLayout::new(weight.ty, sides[1]).is_some() {
        return Ok(());
    }
    let problem = format!("its 4-bit weights have shape {:?}, expected {:?}", info.shape, weight.shape);
    Err(misplaced(checkpoint, &part.tensor, problem))
}

fn missing(checkpoint: &Checkpoint, tensor: &str) -> BackendError {
    BackendError::MissingTensor { file: checkpoint.display_name(), tensor: tensor.to_owned() }
}

fn misplaced(checkpoint: &Checkpoint, tensor: &str, problem: String) -> BackendError {
    BackendError::Packed { file: checkpoint.display_name(), tensor: tensor.to_owned(), problem }
}

/// Whether the file stores the tensors of a weight in tiles, which must then have the shape of its matrices.
///
/// # Errors
/// [`BackendError::Packed`] for tiles of another shape, or rows and tiles side by side.
pub(crate) fn tiles_in_file(weight: &Weight, checkpoint: &Checkpoint) -> Result<bool, BackendError> {
    let infos = || weight.parts.iter().filter_map(|part| checkpoint.info(&part.tensor));
    if infos().all(|info| info.tile_rows.is_none()) {
        return Ok(false);
    }
    let (outputs, inputs) = (weight.outputs(), weight.inputs());
    let matrices = if weight.parts.len() > 1 { 1 } else { weight.stacked() };
    let layout = TileLayout::new(weight.ty, inputs).filter(|_| weight.shape.len() > 1);
    let expected = layout.map(|layout| (outputs, matrices * layout.matrix_bytes(outputs)));
    match infos().find(|info| info.tile_rows.map(|rows| (rows, info.bytes)) != expected) {
        None => Ok(true),
        Some(info) => {
            let found = match info.tile_rows {
                Some(rows) => format!("is stored in tiles of matrices of {rows} rows, {} bytes", info.bytes),
                None => "is stored in rows, but other matrices of this weight in tiles".into(),
            };
            let problem = format!("{found}; expected {matrices} × {outputs} × {inputs} of {}", weight.ty);
            Err(misplaced(checkpoint, &info.name, problem))
        }
    }
}

fn decode(ty: TensorType, bytes: &[u8], numbers: usize, file: &str) -> Result<Vec<f32>, BackendError> {
    let mut out = vec![0.0; numbers];
    latent_quant::decode(ty, bytes, &mut out)
        .map_err(|error| BackendError::Decode { file: file.to_owned(), error })?;
    Ok(out)
}
