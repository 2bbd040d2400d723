//! Parts of a checkpoint, for a rank that shares the model with others.

use crate::builder::by_name;
use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::tensor::{TensorCut, TensorInfo, TensorLocation};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A part of a tensor: ranges of matrices, rows and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The tensor's name.
    pub tensor: String,
    /// Number of matrices, rows of a matrix, and columns of the whole tensor.
    pub whole: [usize; 3],
    pub matrices: Range<usize>,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl TensorPart {
    /// The whole of a tensor of `whole` matrices, rows and columns.
    pub fn all(tensor: &str, whole: [usize; 3]) -> TensorPart {
        let [matrices, rows, columns] = whole.map(|end| 0..end);
        TensorPart { tensor: tensor.to_owned(), whole, matrices, rows, columns }
    }

    fn is_all(&self) -> bool {
        [&self.matrices, &self.rows, &self.columns].map(|range| (range.start, range.end))
            == self.whole.map(|end| (0, end))
    }
}

impl Checkpoint {
    /// A checkpoint with only these parts of the model's tensors, with their names and the
    /// remaining shapes. No data are read or copied. Contiguous parts are used in place; others are
    /// assembled while their rows are read.
    ///
    /// # Errors
    /// [`FormatError::Cut`] for a missing tensor, another shape, or a cut within a block of a
    /// format or within a tile of a packed file; [`FormatError::Absent`] for tensors of missing
    /// files.
    pub fn parts(&self, parts: &[TensorPart]) -> Result<Checkpoint, FormatError> {
        self.check_present(parts)?;
        let mut cuts = Vec::new();
        let tensors: Vec<TensorInfo> =
            parts.iter().map(|part| self.part(part, &mut cuts)).collect::<Result<_, _>>()?;
        let by_name = by_name(&tensors);
        Ok(Checkpoint {
            path: self.path.clone(),
            source: Arc::clone(&self.source),
            files: self.files.clone(),
            headers: self.headers.clone(),
            tensors,
            by_name,
            fingerprint: self.fingerprint,
            packed: self.packed.clone(),
            four_bit: Arc::clone(&self.four_bit),
            cuts,
            derived: Arc::clone(&self.derived),
            in_files: self.in_files.clone(),
            absent: Arc::clone(&self.absent),
            adapters: Arc::clone(&self.adapters),
            _in_use: Vec::new(),
        })
    }

    /// Checks that no part is in a missing file. The error names all missing files, so that the
    /// user can copy them in one step.
    fn check_present(&self, parts: &[TensorPart]) -> Result<(), FormatError> {
        let is_absent = |part: &&TensorPart| {
            self.info(&part.tensor).is_some_and(|info| matches!(info.place, TensorLocation::Absent))
        };
        let absent: Vec<&TensorPart> = parts.iter().filter(is_absent).collect();
        let Some(first) = absent.first() else { return Ok(()) };
        let needed: BTreeSet<&str> =
            absent.iter().filter_map(|part| self.absent.file_of(&part.tensor)).collect();
        Err(FormatError::Absent {
            path: self.path.clone(),
            files: needed.into_iter().map(str::to_owned).collect(),
            tensor: first.tensor.clone(),
            tensors: absent.len(),
        })
    }

    fn part(&self, part: &TensorPart, cuts: &mut Vec<TensorCut>) -> Result<TensorInfo, FormatError> {
        let refuse = |problem: String| {
            Err(FormatError::Cut { path: self.path.clone(), tensor: part.tensor.clone(), problem })
        };
        let Some(info) = self.info(&part.tensor) else { return refuse("it is not in the file".into()) };
        if part.is_all() {
            return Ok(info.clone());
        }
        let [matrices, rows, columns] = part.whole;
        let fits = |range: &Range<usize>, end: usize| range.start < range.end && range.end <= end;
        let elements: usize = info.shape.iter().product();
        // The partition was computed from config.json. A tensor of another shape would be cut at
        // wrong bytes.
        let inside = fits(&part.matrices, matrices) && fits(&part.rows, rows) && fits(&part.columns, columns);
        if !inside || elements != matrices * rows * columns {
            return refuse(format!("its shape is {:?}, but the part is {part:?}", info.shape));
        }
        let shape = shape(info, part);
        let matrix_bytes = info.bytes / matrices;
        // A tile interleaves sixteen rows, so rows and columns cannot be cut out.
        if info.tile_rows.is_some() {
            if part.rows.len() != rows || part.columns.len() != columns {
                let advice = "a packed file can only be split between layers and experts; run the file that \
                              it was packed from";
                return refuse(advice.into());
            }
            let place = moved(info.place, part.matrices.start * matrix_bytes);
            let bytes = part.matrices.len() * matrix_bytes;
            return Ok(TensorInfo { shape, bytes, place, ..info.clone() });
        }
        let row_bytes = matrix_bytes / rows;
        let of_columns = |columns: usize| info.ty.row_bytes(columns);
        let (Some(from), Some(to)) = (of_columns(part.columns.start), of_columns(part.columns.end)) else {
            return refuse(format!(
                "columns {} to {} are not aligned to blocks of {} elements; use fewer ranks, or split by \
                 layers or experts",
                part.columns.start,
                part.columns.end,
                info.ty.block_len()
            ));
        };
        let count = part.matrices.len() * part.rows.len();
        let bytes = count * (to - from);
        // Contiguous in the file: whole rows of one matrix, whole matrices, or a part of one row.
        let whole_rows = part.columns.len() == columns;
        let one_piece = count == 1 || whole_rows && (part.matrices.len() == 1 || part.rows.len() == rows);
        // Rows that are assembled or computed while they are read have no location in a file.
        let place = if info.is_stored() && one_piece {
            let first = part.matrices.start * rows + part.rows.start;
            moved(info.place, first * row_bytes + from)
        } else {
            cuts.push(TensorCut {
                whole: info.clone(),
                matrix_rows: rows,
                first_matrix: part.matrices.start,
                rows: part.rows.clone(),
                bytes: from..to,
            });
            TensorLocation::Cut(cuts.len() - 1)
        };
        Ok(TensorInfo { shape, bytes, place, ..info.clone() })
    }
}

/// A location `by` bytes later in its file.
fn moved(place: TensorLocation, by: usize) -> TensorLocation {
    match place {
        TensorLocation::File { file, start } => TensorLocation::File { file, start: start + by },
        other => other,
    }
}

/// The shape of a part. It has as many dimensions as the tensor, if the others are 1.
fn shape(info: &TensorInfo, part: &TensorPart) -> Vec<usize> {
    let left = [part.matrices.len(), part.rows.len(), part.columns.len()];
    let dimensions = info.shape.len().clamp(1, 3);
    match left[..3 - dimensions].iter().all(|n| *n == 1) {
        true => left[3 - dimensions..].to_vec(),
        false => left.to_vec(),
    }
}
