//! Loaded weights: tiles in memory, or slices of the mapped file.
#![allow(
    unsafe_code,
    reason = "slices of the mapped file are stored with the checkpoint that keeps them alive"
)]

use crate::pack::{PackedMatrices, TileMatrices};
use crate::source_pages::SourcePages;
use crate::weight_arena::WeightArena;
use latent_backend::BackendError;
use latent_formats::{Checkpoint, ScaleGrid, TensorInfo};
use latent_graph::circuit::{Weight, WeightPart};
use latent_kernels::{BlockScales, WeightMatrix};
use latent_quant::tiles::{ROWS, TileLayout};
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
    storage: WeightStorage,
    scales: WeightScales,
}

/// The elements of a weight. Mapped bytes are in one slice for all matrices, or in one per matrix.
enum WeightStorage {
    /// Rows, as the file stores them.
    Rows(Vec<MappedBytes>),
    /// Tiles, as packed files store them.
    Tiles(Vec<MappedBytes>),
    /// Tiles that were packed while loading.
    Packed(PackedMatrices),
    /// Dequantized elements of a weight that no product reads: norm weights, router biases, taps of
    /// a convolution.
    Vector(Vec<f32>),
}

/// Scales that are stored in tensors of their own.
enum WeightScales {
    /// No such tensor: the scales are part of the blocks, or 1.
    None,
    /// One scale per matrix, applied to the results.
    Matrices(Vec<f32>),
    /// One scale per block of `rows` × `cols` elements (FP8), matrix after matrix. Scales of single
    /// rows are padded to whole tiles.
    Blocks { numbers: Vec<f32>, rows: usize, cols: usize },
}

/// Bytes of the mapped file, with the checkpoint that keeps the map alive. Rows that are not
/// contiguous in the file are copied instead.
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
        // SAFETY: `start` and `len` come from a slice of memory that `_keep` owns and keeps in
        // place: a map, or the heap buffer of a Vec that is never changed.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    fn copied(bytes: Vec<u8>) -> MappedBytes {
        let (start, len) = (bytes.as_ptr(), bytes.len());
        MappedBytes { start, len, _keep: Arc::new(bytes) }
    }
}

impl LoadedWeight {
    /// Loads `weight` from the source. If `layout` is tiles, all workers pack it into `memory`. A
    /// `plain` weight is dequantized. Tiles of a packed file are used in place for every `layout`:
    /// kernels that read rows gather the same elements from tiles.
    ///
    /// # Errors
    /// [`BackendError::NotDecodable`] if the format cannot be decoded. Also if a tensor or a scale
    /// is missing, if stored tiles have another shape than the weight, or if the system refuses
    /// memory.
    pub fn load(
        weight: &Weight,
        source: &SourcePages,
        (layout, plain): (WeightLayout, bool),
        memory: &mut WeightArena,
        thread_pool: &mut ThreadPool,
    ) -> Result<LoadedWeight, BackendError> {
        let checkpoint = source.checkpoint();
        let tiles = tiles_in_file(weight, checkpoint)?;
        let file = checkpoint.display_name();
        if !latent_quant::can_decode(weight.ty) {
            let tensor = weight.parts.first().map(|p| p.tensor.clone()).unwrap_or_default();
            return Err(BackendError::NotDecodable { file, tensor, ty: weight.ty });
        }
        let mut rows = Vec::with_capacity(weight.parts.len());
        let mut mapped = Vec::with_capacity(weight.parts.len());
        for part in &weight.parts {
            rows.push(checkpoint.rows(&part.tensor)?.ok_or_else(|| missing(checkpoint, &part.tensor))?);
            match checkpoint.tensor(&part.tensor) {
                Some(tensor) => {
                    let (start, len) = (tensor.data.as_ptr(), tensor.data.len());
                    let keep: Arc<Checkpoint> = Arc::clone(checkpoint);
                    mapped.push(MappedBytes { start, len, _keep: keep });
                }
                // Rows that are computed while they are read (derived, or in pieces) are packed
                // into tiles below. Formats without tiles get a copy of all rows.
                None if TileLayout::new(weight.ty, weight.inputs()).is_some() && weight.shape.len() > 1 => {
                    check_shape(part, weight, checkpoint)?;
                }
                None => {
                    let count = checkpoint.info(&part.tensor).map_or(0, TensorInfo::rows);
                    let mut bytes = Vec::new();
                    if let Some(rows) = rows.last() {
                        rows.read(0..count, &mut bytes);
                    }
                    mapped.push(MappedBytes::copied(bytes));
                }
            }
        }
        let scales = WeightScales::read(weight, checkpoint)?;
        let (ty, outputs, inputs) = (weight.ty, weight.outputs(), weight.inputs());
        let storage = if weight.shape.len() == 1 || plain {
            WeightStorage::Vector(decode(ty, mapped[0].get(), weight.elements(), &file)?)
        } else if tiles {
            WeightStorage::Tiles(mapped)
        } else if layout == WeightLayout::Tiles
            && let Some(matrices) = TileMatrices::new(ty, outputs, inputs, weight.matrices(), &rows)
        {
            WeightStorage::Packed(pack(weight, &matrices, source, memory, thread_pool)?)
        } else {
            WeightStorage::Rows(mapped)
        };
        Ok(LoadedWeight { ty, outputs, inputs, storage, scales })
    }

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

    /// The matrix at `index` (an expert, a head).
    pub fn matrix(&self, index: usize) -> WeightMatrix<'_> {
        let (ty, outputs, inputs) = (self.ty, self.outputs, self.inputs);
        let matrix = match &self.storage {
            WeightStorage::Packed(packed) => {
                WeightMatrix::from_tiles(ty, packed.matrix(index), outputs, inputs)
            }
            WeightStorage::Tiles(mapped) => {
                let bytes = TileLayout::new(ty, inputs).map_or(0, |layout| layout.matrix_bytes(outputs));
                WeightMatrix::from_tiles(ty, matrix_bytes(mapped, index, bytes), outputs, inputs)
            }
            WeightStorage::Rows(mapped) => {
                let bytes = ty.row_bytes(inputs).unwrap_or(0) * outputs;
                WeightMatrix::from_rows(ty, matrix_bytes(mapped, index, bytes), outputs, inputs)
            }
            WeightStorage::Vector(_) => panic!("a vector has no matrices"),
        };
        let matrix = matrix.expect("bytes that were counted while loading");
        let WeightScales::Blocks { numbers, rows, cols } = &self.scales else { return matrix };
        let (rows, cols) = (*rows, *cols);
        // Scales of single rows were padded to whole tiles in `WeightScales::read`.
        let down = if rows == 1 { outputs.next_multiple_of(ROWS) } else { outputs.div_ceil(rows) };
        let count = down * inputs.div_ceil(cols);
        let numbers = &numbers[index * count..(index + 1) * count];
        matrix
            .with_scales(BlockScales { numbers, rows, cols })
            .expect("scales that were counted while loading")
    }

    /// Scale of the results of the matrix at `index`.
    pub fn scale(&self, index: usize) -> f32 {
        match &self.scales {
            WeightScales::Matrices(scales) => scales.get(index).copied().unwrap_or(1.0),
            WeightScales::None | WeightScales::Blocks { .. } => 1.0,
        }
    }

    /// The elements of a vector or of another plain weight. Empty for a matrix.
    pub fn vector(&self) -> &[f32] {
        match &self.storage {
            WeightStorage::Vector(elements) => elements,
            WeightStorage::Rows(_) | WeightStorage::Tiles(_) | WeightStorage::Packed(_) => &[],
        }
    }
}

/// The bytes of the matrix at `index`, each of which takes `bytes`.
fn matrix_bytes(mapped: &[MappedBytes], index: usize, bytes: usize) -> &[u8] {
    match mapped {
        [all] => &all.get()[index * bytes..(index + 1) * bytes],
        parts => parts[index].get(),
    }
}

/// Packs all matrices and releases the file's pages as it proceeds.
fn pack(
    weight: &Weight,
    matrices: &TileMatrices<'_, '_>,
    source: &SourcePages,
    memory: &mut WeightArena,
    thread_pool: &mut ThreadPool,
) -> Result<PackedMatrices, BackendError> {
    let bytes = weight.outputs() * weight.ty.row_bytes(weight.inputs()).unwrap_or(0);
    let on_packed = |m: usize, part: Range<usize>| match &weight.parts[..] {
        [all] => source.packed(&all.tensor, m * bytes + part.start..m * bytes + part.end),
        parts => source.packed(&parts[m].tensor, part),
    };
    let packed = PackedMatrices::new(matrices, memory, thread_pool, &on_packed)?;
    weight.parts.iter().for_each(|part| source.done(&part.tensor));
    Ok(packed)
}

impl WeightScales {
    /// The scales of all tensors of a weight.
    fn read(weight: &Weight, checkpoint: &Arc<Checkpoint>) -> Result<WeightScales, BackendError> {
        let matrices = if weight.parts.len() > 1 { 1 } else { weight.stacked() };
        let (outputs, inputs) = (weight.outputs(), weight.inputs());
        let (mut numbers, mut grid) = (Vec::new(), None);
        for part in &weight.parts {
            let Some(name) = &part.scale else {
                // An expert without a scale after experts with one.
                if grid == Some(ScaleGrid::Matrix) {
                    numbers.push(1.0);
                }
                continue;
            };
            let table = checkpoint.scales(name, weight.ty, [matrices, outputs, inputs])?;
            let table = table.ok_or_else(|| missing(checkpoint, name))?;
            if *grid.get_or_insert(table.grid) != table.grid {
                let problem = "has scales of other parts of a matrix than the first expert".into();
                return Err(misplaced(checkpoint, name, problem));
            }
            match table.grid {
                // Padded per matrix: kernels load the scales of a whole tile, and those of the last
                // tile must not be the next matrix's.
                ScaleGrid::Rows => table.numbers.chunks(outputs.max(1)).for_each(|rows| {
                    numbers.extend_from_slice(rows);
                    numbers.resize(numbers.len().next_multiple_of(ROWS), 0.0);
                }),
                ScaleGrid::Matrix | ScaleGrid::Blocks { .. } => numbers.extend(table.numbers),
            }
        }
        Ok(match grid {
            None => WeightScales::None,
            Some(ScaleGrid::Matrix) => WeightScales::Matrices(numbers),
            Some(ScaleGrid::Rows) => WeightScales::Blocks { numbers, rows: 1, cols: inputs },
            Some(ScaleGrid::Blocks { rows, cols }) => WeightScales::Blocks { numbers, rows, cols },
        })
    }
}

/// Checks the shape of a tensor that is computed while it is read. Tensors that a partition cuts
/// were checked before.
fn check_shape(part: &WeightPart, weight: &Weight, checkpoint: &Checkpoint) -> Result<(), BackendError> {
    let info = checkpoint.info(&part.tensor).ok_or_else(|| missing(checkpoint, &part.tensor))?;
    let expected = if weight.parts.len() > 1 { &weight.shape[1..] } else { &weight.shape[..] };
    if weight.cut.is_some() || info.shape == expected {
        return Ok(());
    }
    let problem = format!("its shape is {:?}, expected {expected:?}", info.shape);
    Err(misplaced(checkpoint, &part.tensor, problem))
}

fn missing(checkpoint: &Checkpoint, tensor: &str) -> BackendError {
    BackendError::MissingTensor { file: checkpoint.display_name(), tensor: tensor.to_owned() }
}

fn misplaced(checkpoint: &Checkpoint, tensor: &str, problem: String) -> BackendError {
    BackendError::Packed { file: checkpoint.display_name(), tensor: tensor.to_owned(), problem }
}

/// Whether the file stores the tensors of a weight in tiles. Such tiles must have the shape of the
/// weight's matrices.
///
/// # Errors
/// [`BackendError::Packed`] if tiles have another shape, or if some matrices are stored in rows and
/// others in tiles.
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
                None => "is stored in rows, but other matrices of this weight are in tiles".into(),
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
