//! Tables of the tensors that the plan reads, and of its weights as rows of tensors.

use crate::error::EmitError;
use latent_formats::Checkpoint;
use latent_graph::circuit::Weight;
use latent_types::TensorType;
use std::collections::BTreeMap;

/// Weight formats that `runtime/kernels.c` decodes.
pub(crate) const FORMATS: [TensorType; 16] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::MXFP4,
];

/// Maximum dimensions of a tensor in `runtime/gguf.h`, as in GGUF.
pub(crate) const MAX_DIMENSIONS: usize = 4;

/// A weight as the C code reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WeightRows {
    pub(crate) tensor: String,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub(crate) struct TensorEntry {
    pub(crate) ty: TensorType,
    /// Innermost first.
    pub(crate) dimensions: [usize; MAX_DIMENSIONS],
}

/// The tables of a plan: tensors by name, and weights.
#[derive(Debug, Default)]
pub(crate) struct WeightTables {
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
    pub(crate) weights: Vec<WeightRows>,
    /// Weights that the C code cannot read, as error texts.
    pub(crate) missing: Vec<String>,
}

impl WeightTables {
    /// The index of a weight in the C table. A weight that the C code cannot read is recorded and
    /// gets index 0, so that one error lists all of them.
    pub(crate) fn index(&mut self, checkpoint: &Checkpoint, weight: &Weight) -> Result<usize, EmitError> {
        match entry(checkpoint, weight) {
            Ok((rows, tensor)) => {
                self.tensors.insert(rows.tensor.clone(), tensor);
                let known = self.weights.iter().position(|known| *known == rows);
                Ok(known.unwrap_or_else(|| {
                    self.weights.push(rows);
                    self.weights.len() - 1
                }))
            }
            Err(problem) => {
                if !self.missing.contains(&problem) {
                    self.missing.push(problem);
                }
                Ok(0)
            }
        }
    }

    /// Elements of the longest row, for the scratch buffer of a decoded row.
    pub(crate) fn longest_row(&self) -> usize {
        self.weights.iter().map(|weight| weight.inputs).max().unwrap_or(1)
    }
}

fn entry(checkpoint: &Checkpoint, weight: &Weight) -> Result<(WeightRows, TensorEntry), String> {
    let name = latent_types::printable(weight.key()).into_owned();
    if !FORMATS.contains(&weight.ty) {
        let known: Vec<&str> = FORMATS.iter().map(|ty| ty.name()).collect();
        let ty = weight.ty;
        return Err(format!("format {ty} (of {name}); formats with C code are {}", known.join(", ")));
    }
    let [part] = &weight.parts[..] else {
        return Err(format!("{}: a tensor for each expert", weight.slot));
    };
    if part.scale.is_some() {
        return Err(format!("{name}: scales in a tensor of their own"));
    }
    if weight.adapter.is_some() {
        return Err(format!("{name}: a LoRA adapter (merge it with `latent quantize --merge-lora`)"));
    }
    // The target neither splits `kv_b` nor runs on ranks, so this is for other callers of the
    // table.
    if weight.derived.is_some() || weight.cut.is_some() {
        return Err(format!("{name}: a part of a tensor"));
    }
    // The C code maps the file, so tensors that are assembled while loading cannot be read.
    let info = checkpoint.info(&part.tensor).filter(|info| info.is_stored());
    let Some(info) = info else { return Err(format!("{name}: not stored as it is read")) };
    let elements = info.shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
    let shape = &info.shape;
    if elements != Some(weight.elements()) || info.ty != weight.ty || shape.len() > MAX_DIMENSIONS {
        return Err(format!("{name}: shape {shape:?}"));
    }
    // A vector may be stored as a matrix with one column. Rows of blocks or tiles cannot be
    // regrouped.
    let (inputs, width) = (weight.inputs(), shape.last().copied().unwrap_or(1));
    let whole_rows = weight.ty.block_len() > 1 || info.tile_rows.is_some();
    if inputs == 0 || (whole_rows && inputs != width) {
        return Err(format!("{name}: rows of {inputs} elements, stored as {width}"));
    }
    let mut dimensions = [1; MAX_DIMENSIONS];
    for (dimension, n) in dimensions.iter_mut().zip(shape.iter().rev()) {
        *dimension = *n;
    }
    let rows = WeightRows { tensor: part.tensor.clone(), rows: weight.elements() / inputs, inputs };
    Ok((rows, TensorEntry { ty: weight.ty, dimensions }))
}
