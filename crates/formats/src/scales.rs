//! Scales in tensors of their own, and the part of a weight that each scale multiplies.

use crate::checkpoint::Checkpoint;
use crate::error::{FormatError, FourBitError};
use half::{bf16, f16};
use latent_types::TensorType;

/// The part of a weight that each scale multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleGrid {
    /// A whole matrix, or all of them.
    Matrix,
    /// A row: one output.
    Rows,
    /// A rectangle of this many rows and columns.
    Blocks { rows: usize, cols: usize },
}

impl ScaleGrid {
    /// The grid of scales of `shape` for a weight of matrices, rows and columns. FP8 matrices have
    /// a scale for each `block`. `None` if the shape fits no grid.
    pub fn of(
        shape: &[usize],
        [matrices, rows, cols]: [usize; 3],
        block: (usize, usize),
    ) -> Option<ScaleGrid> {
        let count = shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side))?;
        if count == 1 || (matrices > 1 && count == matrices) {
            return Some(ScaleGrid::Matrix);
        }
        // Sides are compared, not counts: a row of blocks may have as many scales as the matrix has
        // rows ([1, 32] for 32 × 4096).
        let (down, across) = (rows.div_ceil(block.0.max(1)), cols.div_ceil(block.1.max(1)));
        let sides = match *shape {
            // ModelOpt's shape of blocks.
            [down, 1, across, 1] => [down, across],
            [.., down, across] => [down, across],
            [rows] => [rows, 1],
            [] => return None,
        };
        if sides == [rows, 1] && count == matrices.checked_mul(rows)? {
            return Some(ScaleGrid::Rows);
        }
        let fits = sides == [down, across] && count == matrices.checked_mul(down)?.checked_mul(across)?;
        fits.then_some(ScaleGrid::Blocks { rows: block.0, cols: block.1 })
    }

    /// Rows and columns of a matrix that share a scale.
    pub fn sides(self, [_, rows, cols]: [usize; 3]) -> (usize, usize) {
        match self {
            ScaleGrid::Matrix => (rows, cols),
            ScaleGrid::Rows => (1, cols),
            ScaleGrid::Blocks { rows, cols } => (rows, cols),
        }
    }

    /// The shape of the scales in a checkpoint.
    pub(crate) fn shape(self, [matrices, rows, cols]: [usize; 3]) -> Vec<usize> {
        let sides = match self {
            ScaleGrid::Matrix => return vec![matrices],
            ScaleGrid::Rows => [rows, 1],
            ScaleGrid::Blocks { rows: down, cols: across } => [rows.div_ceil(down), cols.div_ceil(across)],
        };
        if matrices == 1 { sides.to_vec() } else { vec![matrices, sides[0], sides[1]] }
    }
}

/// The scales of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleTable {
    /// The scales in row-major order of each matrix; for [`ScaleGrid::Matrix`] one per matrix.
    pub numbers: Vec<f32>,
    pub grid: ScaleGrid,
}

impl Checkpoint {
    /// The scales in the tensor `name` of a weight of type `ty` with the given matrices, rows and
    /// columns; `None` if the tensor is missing.
    ///
    /// # Errors
    /// Scales of an unexpected type or number; infinite or NaN scales.
    pub fn scales(
        &self,
        name: &str,
        ty: TensorType,
        weight: [usize; 3],
    ) -> Result<Option<ScaleTable>, FormatError> {
        let Some(info) = self.info(name) else { return Ok(None) };
        let set = |problem: String| FormatError::Set { path: self.path.clone(), problem };
        if info.tile_rows.is_some() {
            return Err(set(format!("tensor {name} holds scales, which cannot be stored in tiles")));
        }
        let Some(rows) = self.rows(name)? else { return Ok(None) };
        let block = self.fp8_block()?;
        let grid = ScaleGrid::of(&info.shape, weight, block);
        // Other formats have one factor for each matrix, or one for all.
        let grid = grid.or((ty != TensorType::F8_E4M3).then_some(ScaleGrid::Matrix)).ok_or_else(|| {
            let [matrices, rows, cols] = weight;
            set(format!(
                "tensor {name} has shape {:?}, which does not match the scales of {matrices} × {rows} × \
                 {cols}: expected one per matrix, per row, or per block of {} × {}",
                info.shape, block.0, block.1
            ))
        })?;
        let mut numbers = decode(info.ty, &rows.bytes(0..info.rows()))
            .ok_or_else(|| set(format!("the scales {name} are {}, expected F32, BF16 or F16", info.ty)))?;
        if let Some(index) = numbers.iter().position(|scale| !scale.is_finite()) {
            let (tensor, found) = (name.to_owned(), numbers[index].to_string());
            let error = FourBitError::Scale { tensor, index, found, expected: "a finite number" };
            return Err(FormatError::FourBit { path: self.path.clone(), error: Box::new(error) });
        }
        // One scale for all matrices is repeated, because callers index by matrix.
        if grid == ScaleGrid::Matrix && numbers.len() != weight[0] {
            numbers = vec![numbers.first().copied().unwrap_or(1.0); weight[0]];
        }
        Ok(Some(ScaleTable { numbers, grid }))
    }
}

/// The elements of a tensor of scales; `None` for other types. Widening of 16-bit types is exact.
fn decode(ty: TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    let half = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    Some(match ty {
        TensorType::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        TensorType::BF16 => {
            bytes.chunks_exact(2).map(|bytes| bf16::from_bits(half(bytes)).to_f32()).collect()
        }
        TensorType::F16 => bytes.chunks_exact(2).map(|bytes| f16::from_bits(half(bytes)).to_f32()).collect(),
        _ => return None,
    })
}

pub(crate) const SCALE_TYPES: [TensorType; 3] = [TensorType::F32, TensorType::BF16, TensorType::F16];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_follow_from_the_shape_of_the_scales() {
        let grid = |shape: &[usize], weight| ScaleGrid::of(shape, weight, (128, 128));
        let blocks = Some(ScaleGrid::Blocks { rows: 128, cols: 128 });
        let (plain, stacked) = ([1, 256, 384], [4, 256, 384]);
        for shape in [&[][..], &[1], &[1, 1]] {
            assert_eq!(grid(shape, plain), Some(ScaleGrid::Matrix), "{shape:?}");
        }
        assert_eq!(grid(&[256], plain), Some(ScaleGrid::Rows));
        assert_eq!(grid(&[256, 1], plain), Some(ScaleGrid::Rows));
        assert_eq!(grid(&[2, 3], plain), blocks);
        assert_eq!(grid(&[2, 1, 3, 1], plain), blocks);
        assert_eq!(grid(&[4, 1, 1], stacked), Some(ScaleGrid::Matrix));
        assert_eq!(grid(&[4, 256, 1], stacked), Some(ScaleGrid::Rows));
        assert_eq!(grid(&[4, 2, 3], stacked), blocks);
        // As many blocks as rows.
        assert_eq!(grid(&[1, 32], [1, 32, 4096]), blocks);
        assert_eq!(grid(&[32, 1], [1, 32, 4096]), Some(ScaleGrid::Rows));
        for shape in [&[3, 2][..], &[255], &[384, 1], &[2, 3, 1], &[usize::MAX, 2], &[0]] {
            assert_eq!(grid(shape, plain), None, "{shape:?}");
        }
        for (grid, shape) in [(ScaleGrid::Matrix, vec![4]), (ScaleGrid::Rows, vec![4, 256, 1])] {
            assert_eq!(grid.shape(stacked), shape);
        }
    }
}
