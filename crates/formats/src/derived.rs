//! Derived tensors: computed from a stored tensor while their rows are read.

use crate::tensor::TensorInfo;
use latent_types::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// Rows that a derived tensor is computed from.
pub trait RowSource {
    /// The bytes of rows, borrowed from a file or written to `scratch`.
    fn source_rows<'s>(&'s self, rows: Range<usize>, scratch: &'s mut Vec<u8>) -> &'s [u8];
}

/// Computes rows of a derived tensor.
pub trait DerivedRows: Send + Sync {
    /// Appends the bytes of rows, computed from `source`.
    fn read(&self, source: &dyn RowSource, rows: Range<usize>, out: &mut Vec<u8>);
}

/// A tensor that is computed from another one.
pub struct DerivedTensor {
    pub name: String,
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// The tensor that it is computed from.
    pub from: String,
    pub rows: Arc<dyn DerivedRows>,
}

/// The source of a derived tensor.
#[derive(Clone)]
pub(crate) struct DerivedSource {
    pub(crate) from: TensorInfo,
    pub(crate) rows: Arc<dyn DerivedRows>,
}
