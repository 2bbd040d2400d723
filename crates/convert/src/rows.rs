//! Rows of a new tensor, computed from tensors of the old file.

use crate::error::ConvertError;
use crate::scale::TensorScale;
use crate::tensors::{NewTensor, NewTensorContents};
use latent_formats::{Checkpoint, ResidentPages, TensorInfo, TensorRows};
use latent_graph::circuit::{ConfigVars, TensorOrigin, WeightPart};
use latent_graph::config::AttentionShape;
use latent_graph::{CheckpointTensors, Circuit, ModelConfig};
use latent_quant::DecodeFn;
use latent_types::TensorType;
use std::borrow::Cow;

/// The old file, and the pages that were resident before the conversion, which
/// [`NewTensorRows::release`] keeps.
pub(crate) struct OldFile<'a> {
    checkpoint: &'a Checkpoint,
    before: ResidentPages,
    nope: usize,
    rope: usize,
    v: usize,
}

/// A tensor of the old file with its decoder and scales.
struct OldTensor<'a> {
    info: &'a TensorInfo,
    bytes: TensorRows<'a>,
    cols: usize,
    /// Rows per matrix.
    rows: usize,
    decode: DecodeFn,
    scale: TensorScale,
}

/// Reader of a new tensor's rows.
pub(crate) struct NewTensorRows<'a> {
    old: &'a OldFile<'a>,
    made: NewRowSource<'a>,
    /// Rows that must be read together.
    pub(crate) unit: usize,
}

/// How the rows of a new tensor are made. `nope`, `rope` and `v` are the sizes of a head's parts.
enum NewRowSource<'a> {
    Numbers(&'a [f32]),
    /// Tensors stacked one after another, of `each` rows.
    Stacked {
        parts: Vec<OldTensor<'a>>,
        each: usize,
    },
    /// One matrix of a stacked tensor; `first` is its first row.
    Matrix {
        stored: OldTensor<'a>,
        first: usize,
    },
    /// The key half of `kv_b`, transposed per head (`attn_k_b`).
    Uk(OldTensor<'a>),
    /// The value half of `kv_b` (`attn_v_b`).
    Uv(OldTensor<'a>),
    /// A function applied to each number, with the elements per row.
    Mapped(OldTensor<'a>, usize, fn(f32) -> f32),
    /// The queries or the gates of a fused matrix: some rows of each head, and half of each row.
    Half {
        stored: OldTensor<'a>,
        gates: bool,
    },
    /// The fused matrix of queries and gates, block-diagonal.
    QueriesAndGates {
        queries: OldTensor<'a>,
        gates: OldTensor<'a>,
    },
    /// `kv_b` from its two halves.
    Joined {
        uk: OldTensor<'a>,
        uv: OldTensor<'a>,
    },
}

impl<'a> OldFile<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, config: &ModelConfig) -> OldFile<'a> {
        let AttentionShape { nope, rope, v, .. } = config.attention;
        OldFile { checkpoint, before: checkpoint.resident_pages(), nope, rope, v }
    }

    fn stored(&self, part: &WeightPart) -> Result<OldTensor<'a>, ConvertError> {
        let missing = || latent_graph::GraphError::MissingTensor {
            file: self.checkpoint.display_name(),
            tensor: part.tensor.clone(),
            hint: "it already exists".into(),
        };
        let info = self.checkpoint.info(&part.tensor).ok_or_else(missing)?;
        let bytes = self.checkpoint.rows(&part.tensor)?.ok_or_else(missing)?;
        let ty = info.ty;
        let not_decodable = || ConvertError::NotDecodable { tensor: part.tensor.clone(), ty };
        let shape = &info.shape;
        let cols = shape.last().copied().unwrap_or(1);
        // A vector is a matrix of one row.
        let rows = if shape.len() < 2 { 1 } else { shape[shape.len() - 2] };
        let matrices = shape.iter().product::<usize>() / (rows * cols).max(1);
        Ok(OldTensor {
            info,
            bytes,
            cols,
            rows,
            decode: latent_quant::decoder(ty).ok_or_else(not_decodable)?,
            scale: TensorScale::of(self.checkpoint, part, (matrices, rows, cols))?,
        })
    }

    /// Whether the fused matrices of queries and output gates are block-diagonal in every layer:
    /// queries do not read the second half of the input, gates do not read the first. Then each can
    /// be stored as two matrices, as llama.cpp requires.
    pub(crate) fn are_queries_and_gates_apart(&self, config: &ModelConfig) -> Result<bool, ConvertError> {
        let index = CheckpointTensors(self.checkpoint);
        let circuit = Circuit::named(&config.circuit)?;
        for layer in 0..config.all_layers() {
            let vars = ConfigVars::of(config, Some(layer));
            let Some(weight) = circuit.fill(("mla", "q_gate"), Some(layer), &vars, &index)? else {
                return Ok(false);
            };
            let Some(part) = weight.parts.first() else { return Ok(false) };
            let stored = self.stored(part)?;
            let mut numbers = vec![0.0; stored.cols];
            let half = stored.cols / 2;
            for row in 0..stored.rows {
                stored.read(row, &mut numbers);
                // Layout of a head: nope + rope rows of queries, then v rows of gates.
                let query = row % (self.nope + self.rope + self.v) < self.nope + self.rope;
                let other = if query { &numbers[half..] } else { &numbers[..half] };
                if other.iter().any(|number| *number != 0.0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Rows of a new tensor that must be read together.
    pub(crate) fn unit(&self, tensor: &NewTensor) -> usize {
        match &tensor.from {
            // A whole head, because it is transposed.
            NewTensorContents::Tensors(TensorOrigin::Uk(_)) => {
                tensor.shape.iter().rev().nth(1).copied().unwrap_or(1).max(1)
            }
            NewTensorContents::Tensors(TensorOrigin::Joined { .. }) => (self.nope + self.v).max(1),
            _ => 1,
        }
    }

    pub(crate) fn rows(&'a self, tensor: &'a NewTensor) -> Result<NewTensorRows<'a>, ConvertError> {
        let (_, rows) = tensor.rows();
        let made = match &tensor.from {
            NewTensorContents::Numbers(numbers) => NewRowSource::Numbers(numbers),
            NewTensorContents::Tensors(TensorOrigin::Stacked(parts)) => {
                let each = rows / parts.len().max(1);
                let parts = parts.iter().map(|part| self.stored(part)).collect::<Result<_, _>>()?;
                NewRowSource::Stacked { parts, each }
            }
            NewTensorContents::Tensors(TensorOrigin::Matrix { part, index }) => {
                NewRowSource::Matrix { stored: self.stored(part)?, first: index * rows }
            }
            NewTensorContents::Tensors(TensorOrigin::Uk(part)) => NewRowSource::Uk(self.stored(part)?),
            NewTensorContents::Tensors(TensorOrigin::Uv(part)) => NewRowSource::Uv(self.stored(part)?),
            NewTensorContents::Tensors(TensorOrigin::Rates { part, negative }) => {
                // GGUF files of Kimi-Linear store the decay rate as -exp(A_log), those of Ling-3.0
                // as exp(A_log).
                let rate: fn(f32) -> f32 = if *negative { |log| -log.exp() } else { f32::exp };
                NewRowSource::Mapped(self.stored(part)?, tensor.rows().0, rate)
            }
            NewTensorContents::Tensors(TensorOrigin::LogRates(part)) => {
                // abs: the sign depends on the family (see above).
                NewRowSource::Mapped(self.stored(part)?, tensor.rows().0, |rate| rate.abs().ln())
            }
            NewTensorContents::Tensors(TensorOrigin::Queries(part)) => {
                NewRowSource::Half { stored: self.stored(part)?, gates: false }
            }
            NewTensorContents::Tensors(TensorOrigin::Gates(part)) => {
                NewRowSource::Half { stored: self.stored(part)?, gates: true }
            }
            NewTensorContents::Tensors(TensorOrigin::QueriesAndGates { queries, gates }) => {
                NewRowSource::QueriesAndGates { queries: self.stored(queries)?, gates: self.stored(gates)? }
            }
            NewTensorContents::Tensors(TensorOrigin::Joined { uk, uv }) => {
                NewRowSource::Joined { uk: self.stored(uk)?, uv: self.stored(uv)? }
            }
        };
        Ok(NewTensorRows { old: self, made, unit: self.unit(tensor) })
    }
}

impl NewTensorRows<'_> {
    /// Reads consecutive rows, whole units of them.
    pub(crate) fn read(&self, first: usize, out: &mut [f32]) {
        let (nope, rope, v) = (self.old.nope, self.old.rope, self.old.v);
        match &self.made {
            NewRowSource::Numbers(numbers) => out.copy_from_slice(&numbers[first..first + out.len()]),
            NewRowSource::Stacked { parts, each } => {
                let mut row = first;
                let mut left = out;
                while !left.is_empty() {
                    let part = &parts[row / each];
                    // Up to the end of this part: `out` may span several experts.
                    let count = (each - row % each).min(left.len() / part.cols);
                    let (now, rest) = left.split_at_mut(count * part.cols);
                    part.read(row % each, now);
                    (row, left) = (row + count, rest);
                }
            }
            NewRowSource::Matrix { stored, first: offset } => stored.read(offset + first, out),
            NewRowSource::Mapped(stored, cols, function) => {
                // Files store it as a row or as a column. It is small, so read all of it and ignore
                // the shape.
                let mut all = vec![0.0; stored.info.shape.iter().product()];
                stored.read(0, &mut all);
                let numbers = &all[first * cols..];
                out.iter_mut().zip(numbers).for_each(|(out, number)| *out = function(*number));
            }
            NewRowSource::Uk(stored) => {
                let lora = stored.cols;
                let mut head = vec![0.0; nope * lora];
                for (i, out) in out.chunks_exact_mut(lora * nope).enumerate() {
                    // A head of `attn_k_b` has `lora` rows; in `kv_b` it has nope + v.
                    stored.read((first / lora + i) * (nope + v), &mut head);
                    transpose(&head, lora, out);
                }
            }
            NewRowSource::Uv(stored) => {
                for (i, out) in out.chunks_exact_mut(stored.cols).enumerate() {
                    let row = first + i;
                    // In `kv_b`, each head has `nope` rows of keys, then `v` rows of values.
                    stored.read(row / v * (nope + v) + nope + row % v, out);
                }
            }
            NewRowSource::Half { stored, gates } => {
                let cols = stored.cols / 2;
                // Each head of the fused matrix has nope + rope rows of queries, then v rows of
                // gates. Queries read the first half of the input, gates the second.
                let (from, each) = if *gates { (nope + rope, v) } else { (0, nope + rope) };
                let mut whole = vec![0.0; stored.cols];
                for (row, out) in (first..).zip(out.chunks_exact_mut(cols)) {
                    stored.read(row / each * (nope + rope + v) + from + row % each, &mut whole);
                    out.copy_from_slice(if *gates { &whole[cols..] } else { &whole[..cols] });
                }
            }
            NewRowSource::QueriesAndGates { queries, gates } => {
                let head = nope + rope + v;
                for (row, out) in (first..).zip(out.chunks_exact_mut(2 * queries.cols)) {
                    let (of_queries, of_gates) = out.split_at_mut(queries.cols);
                    // `out` is reused by the caller and may hold other numbers.
                    of_queries.fill(0.0);
                    of_gates.fill(0.0);
                    match (row % head).checked_sub(nope + rope) {
                        None => queries.read(row / head * (nope + rope) + row % head, of_queries),
                        Some(gate) => gates.read(row / head * v + gate, of_gates),
                    }
                }
            }
            NewRowSource::Joined { uk, uv } => {
                let lora = uv.cols;
                let mut head = vec![0.0; nope * lora];
                for (i, out) in out.chunks_exact_mut((nope + v) * lora).enumerate() {
                    let index = first / (nope + v) + i;
                    let (keys, values) = out.split_at_mut(nope * lora);
                    // A head of `attn_k_b` has `lora` rows of `nope` elements.
                    uk.read(index * lora, &mut head);
                    transpose(&head, nope, keys);
                    uv.read(index * v, values);
                }
            }
        }
    }

    /// The bytes of consecutive rows if they are stored contiguously in `ty`. `None` if they must
    /// be encoded.
    pub(crate) fn stored_bytes(&self, ty: TensorType, first: usize, count: usize) -> Option<Cow<'_, [u8]>> {
        let (stored, first) = match &self.made {
            NewRowSource::Stacked { parts, each } if first % each + count <= *each => {
                (&parts[first / each], first % each)
            }
            NewRowSource::Matrix { stored, first: offset } => (stored, offset + first),
            _ => return None,
        };
        // Separate scales (FP8) are not part of the bytes.
        let plain = matches!(stored.scale, TensorScale::None) && stored.info.ty == ty;
        plain.then(|| stored.bytes.bytes(first..first + count))
    }

    /// Number of rows from `first` on that lie in the same tensor of the old file.
    pub(crate) fn contiguous(&self, first: usize) -> usize {
        match &self.made {
            // Only stacked tensors have seams.
            NewRowSource::Stacked { each, .. } => each - first % each,
            _ => usize::MAX,
        }
    }

    /// Allows the system to drop the pages of rows that have been read.
    pub(crate) fn release(&self, first: usize, count: usize) {
        let release = |stored: &OldTensor<'_>, first: usize, count: usize| {
            let each = stored.bytes.row_bytes();
            let bytes = first * each..(first + count) * each;
            self.old.checkpoint.release(&stored.info.name, bytes, &self.old.before);
        };
        let (nope, v) = (self.old.nope, self.old.v);
        let heads = |unit: usize| (first / unit, count.div_ceil(unit));
        match &self.made {
            NewRowSource::Numbers(_) | NewRowSource::Mapped(..) | NewRowSource::QueriesAndGates { .. } => {}
            // The tensor with the other half reads the same pages.
            NewRowSource::Half { .. } => {}
            NewRowSource::Stacked { parts, each } => {
                for (i, part) in
                    parts.iter().enumerate().skip(first / each).take_while(|(i, _)| i * each < first + count)
                {
                    let (start, end) = (first.max(i * each), (first + count).min((i + 1) * each));
                    release(part, start - i * each, end - start);
                }
            }
            NewRowSource::Matrix { stored, first: offset } => release(stored, offset + first, count),
            NewRowSource::Uk(stored) => {
                let (head, heads) = heads(stored.cols);
                release(stored, head * (nope + v), heads * (nope + v));
            }
            NewRowSource::Uv(stored) => {
                let (head, heads) = heads(v);
                release(stored, head * (nope + v), heads * (nope + v));
            }
            NewRowSource::Joined { uk, uv } => {
                let (head, heads) = heads(nope + v);
                release(uk, head * uv.cols, heads * uv.cols);
                release(uv, head * v, heads * v);
            }
        }
    }
}

impl OldTensor<'_> {
    /// Decodes consecutive rows and applies the scales.
    fn read(&self, first: usize, out: &mut [f32]) {
        let count = out.len() / self.cols.max(1);
        (self.decode)(&self.bytes.bytes(first..first + count), out);
        if !matches!(self.scale, TensorScale::None) {
            for (row, numbers) in (first..).zip(out.chunks_exact_mut(self.cols)) {
                self.scale.apply(row / self.rows, row % self.rows, numbers);
            }
        }
    }
}

/// Transposes a row-major matrix of `cols` columns.
fn transpose(matrix: &[f32], cols: usize, out: &mut [f32]) {
    let rows = matrix.len() / cols;
    for (row, numbers) in matrix.chunks_exact(cols).enumerate() {
        for (col, number) in numbers.iter().enumerate() {
            out[col * rows + row] = *number;
        }
    }
}
