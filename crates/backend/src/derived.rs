//! Weights that plans derive from tensors of the file: the halves W_UK and W_UV of a joined `kv_b`.

use crate::{BackendError, BlockFactors, CheckpointRows};
use latent_formats::{Checkpoint, DerivedRows, DerivedTensor, RowSource};
use latent_graph::circuit::{DerivedWeight, KvHalf, Weight};
use latent_graph::{Stage, distinct_weights};
use latent_quant::DecodeFn;
use latent_types::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// The checkpoint with the weights that these stages derive, except those that a packed file holds.
/// `None` if no weight must be derived. Rows are computed when a backend reads them.
///
/// # Errors
/// If a tensor or scale is missing, or its format cannot be decoded.
pub fn with_derived_weights(
    checkpoint: &Checkpoint,
    stages: &[Stage],
) -> Result<Option<Checkpoint>, BackendError> {
    let mut tensors = Vec::new();
    for weight in distinct_weights(stages) {
        let Some(derived) = &weight.derived else { continue };
        let from = &derived.from;
        // A packed file stores derived weights under their names.
        let stored = checkpoint.info(weight.key()).filter(|_| checkpoint.packed_from().is_some());
        if stored.is_some_and(|info| info.shape == weight.shape && info.ty == weight.ty) {
            continue;
        }
        let file = checkpoint.display_name();
        let decode = latent_quant::decoder(from.ty).ok_or_else(|| BackendError::NotDecodable {
            file,
            tensor: from.key().to_owned(),
            ty: from.ty,
        })?;
        let factors = CheckpointRows { checkpoint }.factors(from)?;
        tensors.push(DerivedTensor {
            name: weight.key().to_owned(),
            ty: weight.ty,
            shape: weight.shape.clone(),
            from: from.key().to_owned(),
            rows: Arc::new(KvHalfRows::new(derived, weight, decode, factors)),
        });
    }
    if tensors.is_empty() {
        return Ok(None);
    }
    Ok(Some(checkpoint.with_derived(tensors)?))
}

/// Computes rows of one half of a `kv_b`.
struct KvHalfRows {
    half: KvHalf,
    /// Rows of W_UK per head in `kv_b`.
    nope: usize,
    /// Rows of W_UV per head in `kv_b`, which follow those of W_UK.
    v: usize,
    kv_lora: usize,
    from: TensorType,
    decode: DecodeFn,
    factors: Option<BlockFactors>,
    to: TensorType,
}

impl KvHalfRows {
    fn new(
        derived: &DerivedWeight,
        weight: &Weight,
        decode: DecodeFn,
        factors: Option<BlockFactors>,
    ) -> KvHalfRows {
        let DerivedWeight { from, half, nope, v } = derived;
        KvHalfRows {
            half: *half,
            nope: *nope,
            v: *v,
            kv_lora: from.inputs(),
            from: from.ty,
            decode,
            factors,
            to: weight.ty,
        }
    }

    /// Rows of the derived tensor that belong to one head.
    fn head_rows(&self) -> usize {
        match self.half {
            KvHalf::Uk => self.kv_lora,
            KvHalf::Uv => self.v,
        }
    }

    /// The elements of some columns of a row of `kv_b`, with scales applied. `block` is a buffer
    /// for whole blocks of the format.
    fn elements<'b>(
        &self,
        source: &dyn RowSource,
        row: usize,
        columns: Range<usize>,
        (bytes, block): (&mut Vec<u8>, &'b mut Vec<f32>),
    ) -> &'b mut [f32] {
        // Only whole blocks of the format can be decoded.
        let len = self.from.block_len();
        let first = columns.start / len * len;
        let end = columns.end.next_multiple_of(len).min(self.kv_lora);
        let at = |column: usize| self.from.row_bytes(column).unwrap_or(0);
        block.resize(end - first, 0.0);
        (self.decode)(&source.source_rows(row..row + 1, bytes)[at(first)..at(end)], block);
        let elements = &mut block[columns.start - first..columns.end - first];
        if let Some(BlockFactors { numbers, rows, inputs }) = &self.factors {
            let line = row / rows * self.kv_lora.div_ceil(*inputs);
            for (column, element) in columns.zip(&mut *elements) {
                *element *= numbers[line + column / inputs];
            }
        }
        elements
    }

    /// Appends rows of elements in the derived type.
    fn encode(&self, elements: &[f32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.to.row_bytes(elements.len()).unwrap_or(0), 0);
        // Cannot fail: the lengths are equal, and plans derive only types that can be encoded.
        let encoded = latent_quant::encode(self.to, elements, &mut out[start..]);
        debug_assert!(encoded.is_ok(), "{} cannot be encoded", self.to);
    }
}

impl DerivedRows for KvHalfRows {
    fn read(&self, source: &dyn RowSource, rows: Range<usize>, out: &mut Vec<u8>) {
        let (mut bytes, mut block, mut elements) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = rows.start;
        while next < rows.end {
            let (head, first) = (next / self.head_rows(), next % self.head_rows());
            // At most to the end of the head: in `kv_b`, the rows of the next head do not follow.
            let count = (self.head_rows() - first).min(rows.end - next);
            let of_head = head * (self.nope + self.v);
            match self.half {
                // W_UV keeps its orientation, so blocks of the same type are copied unchanged.
                KvHalf::Uv if self.to == self.from => {
                    let from = of_head + self.nope + first;
                    out.extend_from_slice(source.source_rows(from..from + count, &mut bytes));
                }
                KvHalf::Uv => {
                    for row in first..first + count {
                        let scratch = (&mut bytes, &mut block);
                        let row = self.elements(source, of_head + self.nope + row, 0..self.kv_lora, scratch);
                        self.encode(row, out);
                    }
                }
                // W_UK is transposed: absorbed queries multiply with it from the other side.
                KvHalf::Uk => {
                    elements.resize(count * self.nope, 0.0);
                    for row in 0..self.nope {
                        let scratch = (&mut bytes, &mut block);
                        let columns = self.elements(source, of_head + row, first..first + count, scratch);
                        for (column, element) in columns.iter().enumerate() {
                            elements[column * self.nope + row] = *element;
                        }
                    }
                    self.encode(&elements, out);
                }
            }
            next += count;
        }
    }
}
