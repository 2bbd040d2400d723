//! The source of the weights to quantize: a file or a conversion.

use crate::error::ConvertError;
use latent_formats::gguf::Metadata;
use latent_formats::identity::Identity;
use latent_formats::{Checkpoint, CheckpointSource};
use latent_types::TensorType;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// A tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its name in the written file.
    pub name: String,
    /// Its shape there, outermost dimension first.
    pub shape: Vec<usize>,
    /// The stored type.
    pub ty: TensorType,
    /// The type if a mix chooses none.
    pub kept: TensorType,
    /// Whether it keeps `kept` in files of an unquantized type too.
    pub wide: bool,
}

/// A model whose weights are written: a GGUF file, or the one that a folder of safetensors becomes.
pub trait Weights: Sync {
    /// Name for messages.
    fn display_name(&self) -> String;

    fn path(&self) -> &Path;

    /// Metadata of the written file, except the keys that types and importances change.
    fn metadata(&self) -> Result<&Metadata, ConvertError>;

    /// The tensors in the order of the written file.
    fn tensors(&self) -> Vec<SourceTensor>;

    /// Identity of all weights, for fingerprints.
    fn identity(&self) -> Identity;

    /// Number of rows of a tensor that must be read together. [`WeightRowReader::read`] starts at a
    /// multiple of it.
    fn rows_together(&self, tensor: usize) -> usize;

    /// Opens the tensor at an index.
    fn rows(&self, tensor: usize) -> Result<Box<dyn WeightRowReader + '_>, ConvertError>;
}

/// The rows of one tensor, counted through all its matrices.
pub trait WeightRowReader {
    /// Reads consecutive rows, a multiple of [`Weights::rows_together`] or up to the end.
    fn read(&self, first: usize, out: &mut [f32]) -> Result<(), ConvertError>;

    /// The bytes of the first of these rows, as many as are stored contiguously in `ty`. `None` if
    /// the first row must be encoded.
    fn stored(&self, ty: TensorType, rows: Range<usize>) -> Option<Cow<'_, [u8]>>;

    /// Allows the system to drop the pages of rows that have been read.
    fn release(&self, rows: Range<usize>);
}

impl Weights for Checkpoint {
    fn display_name(&self) -> String {
        Checkpoint::display_name(self)
    }

    fn path(&self) -> &Path {
        Checkpoint::path(self)
    }

    fn metadata(&self) -> Result<&Metadata, ConvertError> {
        let refused = |problem: &str| {
            let file = Checkpoint::display_name(self);
            Err(ConvertError::Source { file, problem: problem.to_owned() })
        };
        // A packed file interleaves the rows of a tile, but `rows` reads consecutive rows.
        if self.packed_from().is_some() {
            return refused("it is a packed file; quantize the file that it was packed from");
        }
        match self.source() {
            CheckpointSource::Gguf(source) => Ok(&source.metadata),
            CheckpointSource::HuggingFace(_) => {
                refused("it is a folder of safetensors files; use `latent convert` with a type instead")
            }
        }
    }

    fn tensors(&self) -> Vec<SourceTensor> {
        let of = |info: &latent_formats::TensorInfo| SourceTensor {
            name: info.name.clone(),
            shape: info.shape.clone(),
            ty: info.ty,
            kept: info.ty,
            wide: false,
        };
        Checkpoint::tensors(self).iter().map(of).collect()
    }

    fn identity(&self) -> Identity {
        Checkpoint::identity(self)
    }

    // Rows of a GGUF tensor are whole blocks, so each can be decoded alone.
    fn rows_together(&self, _: usize) -> usize {
        1
    }

    fn rows(&self, tensor: usize) -> Result<Box<dyn WeightRowReader + '_>, ConvertError> {
        let info = &Checkpoint::tensors(self)[tensor];
        let data = self.tensor(&info.name).map_or(&[][..], |tensor| tensor.data);
        // A tensor without rows has no bytes either.
        let row_bytes = data.len().checked_div(info.rows()).unwrap_or(0);
        Ok(Box::new(StoredRows { checkpoint: self, name: &info.name, ty: info.ty, data, row_bytes }))
    }
}

/// Reader of a GGUF tensor.
struct StoredRows<'a> {
    checkpoint: &'a Checkpoint,
    name: &'a str,
    ty: TensorType,
    data: &'a [u8],
    row_bytes: usize,
}

impl StoredRows<'_> {
    fn bytes(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.row_bytes..rows.end * self.row_bytes
    }
}

impl WeightRowReader for StoredRows<'_> {
    fn read(&self, first: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        let bytes = out.len() / self.ty.block_len() * self.ty.block_bytes();
        let start = first * self.row_bytes;
        Ok(latent_quant::decode(self.ty, &self.data[start..start + bytes], out)?)
    }

    fn stored(&self, ty: TensorType, rows: Range<usize>) -> Option<Cow<'_, [u8]>> {
        (ty == self.ty).then(|| Cow::Borrowed(&self.data[self.bytes(rows)]))
    }

    fn release(&self, rows: Range<usize>) {
        self.checkpoint.drop_pages(self.name, self.bytes(rows));
    }
}
