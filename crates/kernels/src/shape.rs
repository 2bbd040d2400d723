//! Shape errors. The shapes of operands are checked once, when a view is made, so that unsafe
//! kernels may rely on them.

use latent_types::TensorType;
use std::fmt;

/// An invalid shape of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The number of elements does not fit into `usize`.
    Overflow {
        /// Description of the view.
        what: &'static str,
    },
    /// The length of the memory does not match the shape.
    Length {
        /// Description of the view.
        what: &'static str,
        /// Elements that the shape needs (bytes for weights and the KV cache).
        needed: usize,
        /// Elements of the memory.
        found: usize,
    },
    /// Rows overlap although they are written, or copied with their stride.
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
        /// Description of the value.
        what: &'static str,
        value: usize,
        /// Description of the valid range.
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

/// Elements from the start of the first row to the end of the last. The gap after the last row does
/// not count, since a view of the last columns of a buffer ends without it.
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
