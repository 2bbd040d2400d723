//! Shape errors. Shapes that safe code hands to kernels are checked once, when a view is made, so that kernels may rely on them.

use latent_types::TensorType;
use std::fmt;

/// What is wrong with the shape of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The number of elements does not fit into `usize`.
    Overflow {
        /// What was to be viewed.
        what: &'static str,
    },
    /// The memory has another length than the shape needs.
    Length {
        /// What was to be viewed.
        what: &'static str,
        /// Elements that the shape needs (bytes for weights and the KV cache).
        needed: usize,
        /// Elements that are there.
        found: usize,
    },
    /// Rows overlap that are written, or copied with their stride.
    Overlap {
        /// Elements per row.
        cols: usize,
        /// Elements from one row to the next.
        stride: usize,
    },
    /// The format cannot store rows of this length in this layout.
    Format {
        /// The format.
        ty: TensorType,
        /// Elements per row.
        cols: usize,
        layout: &'static str,
    },
    /// A value is out of range.
    Range {
        /// What it says.
        what: &'static str,
        value: usize,
        /// What it must be.
        expected: &'static str,
    },
    /// A block table names a block that the KV cache does not have.
    Page {
        /// The block.
        page: u32,
        /// Whole blocks in the cache.
        pages: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ShapeError::Overflow { what } => write!(f, "the size of {what} overflows"),
            ShapeError::Length { what, needed, found } => {
                write!(f, "{what} needs {needed} elements, but the memory has {found}")
            }
            ShapeError::Overlap { cols, stride } => {
                write!(f, "rows of {cols} overlap at a stride of {stride}")
            }
            ShapeError::Format { ty, cols, layout } => write!(f, "{ty} has no {layout} of {cols} columns"),
            ShapeError::Range { what, value, expected } => {
                write!(f, "{what} is {value}; expected {expected}")
            }
            ShapeError::Page { page, pages } => {
                write!(f, "the page table names page {page}, but the cache has {pages}")
            }
        }
    }
}

impl std::error::Error for ShapeError {}

/// Elements from the start of the first row to the end of the last.
pub(crate) fn extent(
    what: &'static str,
    rows: usize,
    cols: usize,
    stride: usize,
) -> Result<usize, ShapeError> {
    let Some(before) = rows.checked_sub(1) else { return Ok(0) };
    let end = before.checked_mul(stride).and_then(|before| before.checked_add(cols));
    end.ok_or(ShapeError::Overflow { what })
}

/// Checks the [`extent`] against memory of `found` elements.
pub(crate) fn fits(
    what: &'static str,
    (rows, cols, stride): (usize, usize, usize),
    found: usize,
) -> Result<(), ShapeError> {
    let needed = extent(what, rows, cols, stride)?;
    if needed <= found { Ok(()) } else { Err(ShapeError::Length { what, needed, found }) }
}

/// A product of two sizes.
pub(crate) fn times(what: &'static str, a: usize, b: usize) -> Result<usize, ShapeError> {
    a.checked_mul(b).ok_or(ShapeError::Overflow { what })
}
