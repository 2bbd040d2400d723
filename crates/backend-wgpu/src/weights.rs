//! Weights on the device: those of products in the blocks of their file, vectors and the projections of heads decoded to f32.

use crate::buffers::{Buffer, chunks};
use crate::device::Device;
use crate::error::GpuError;
use crate::matmul::weight::{BlockScales, Weight as ProductWeight, WeightShape};
use crate::values::internal;
use latent_backend::{BackendError, WeightRows};
use latent_graph::ModelConfig;
use latent_graph::Stage;
use latent_graph::circuit::Weight;
use latent_graph::ir::{Node, Op, WeightId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of weights that are decoded before they are sent.
const PIECE: usize = 16 << 20;

/// Which part of a weight a shader multiplies by. W_UK is read along latents by those that expand keys, and along keys by those that absorb
/// queries, whichever of the two the file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// All of it, in its blocks: of a product with rows.
    Product,
    /// All of it, decoded: a vector.
    Whole,
    /// W_UK: per head nope × kv_lora.
    Keys,
    /// W_UKᵀ: per head kv_lora × nope.
    KeysTransposed,
    /// W_UV: per head v × kv_lora.
    Values,
}

/// Matrices of one size on the device.
pub(crate) struct DeviceWeight {
    pub(crate) matrices: usize,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// Its buffers, in order.
    pub(crate) chunks: Vec<Chunk>,
}

/// Some rows of the only matrix, or all rows of some matrices.
pub(crate) struct Chunk {
    pub(crate) buffer: Buffer,
    pub(crate) matrices: Range<usize>,
    pub(crate) outputs: Range<usize>,
}

impl DeviceWeight {
    /// The only buffer: of a vector.
    pub(crate) fn only(&self) -> Result<&Buffer, BackendError> {
        match &self.chunks[..] {
            [chunk] => Ok(&chunk.buffer),
            chunks => internal(format!("a vector in {} buffers", chunks.len())),
        }
    }
}

/// The weights of a model.
pub(crate) struct DeviceWeights {
    decoded: HashMap<(String, Part), Arc<DeviceWeight>>,
    products: HashMap<String, Arc<ProductWeight>>,
}

impl DeviceWeights {
    /// The part of a weight that was loaded.
    pub(crate) fn find(&self, weight: &Weight, part: Part) -> Result<Arc<DeviceWeight>, BackendError> {
        let found = self.decoded.get(&(weight.parts[0].tensor.clone(), part));
        found.map_or_else(
            || internal(format!("{} was not loaded as {part:?}", weight.label())),
            |w| Ok(Arc::clone(w)),
        )
    }

    /// A weight that rows are multiplied by.
    pub(crate) fn product(&self, weight: &Weight) -> Result<Arc<ProductWeight>, BackendError> {
        let found = self.products.get(&weight.parts[0].tensor);
        found.map_or_else(
            || internal(format!("{} was not loaded for products", weight.label())),
            |weight| Ok(Arc::clone(weight)),
        )
    }

    /// Sends every weight that the plans use, once for each part that they use of it. `progress` hears bytes of the file.
    pub(crate) fn load(
        device: &Arc<Device>,
        stages: &[Stage],
        config: &ModelConfig,
        rows: WeightRows<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DeviceWeights, BackendError> {
        let used = used(stages);
        let needed: u64 = used.iter().map(|(weight, part)| bytes(weight, *part, config)).sum();
        let total = used.iter().map(|(weight, _)| weight.bytes() as u64).sum();
        let mut loaded = DeviceWeights { decoded: HashMap::new(), products: HashMap::new() };
        let mut done = 0;
        for (weight, part) in used {
            let name = weight.parts[0].tensor.clone();
            if part == Part::Product {
                let sent = send_blocks(device, weight, rows).map_err(|error| too_much(error, needed))?;
                loaded.products.insert(name, Arc::new(sent));
            } else {
                let sent =
                    send(device, weight, part, config, rows).map_err(|error| too_much(error, needed))?;
                loaded.decoded.insert((name, part), Arc::new(sent));
            }
            done += weight.bytes() as u64;
            progress(done, total);
        }
        Ok(loaded)
    }
}

/// Copies a weight's blocks, with the factors that its file has beside them.
fn send_blocks(
    device: &Arc<Device>,
    weight: &Weight,
    rows: WeightRows<'_>,
) -> Result<ProductWeight, BackendError> {
    let shape =
        WeightShape { inputs: weight.inputs(), outputs: weight.outputs(), matrices: weight.matrices() };
    let factors = rows.factors(weight)?;
    let scales = factors.as_ref().map(|factors| BlockScales {
        numbers: &factors.numbers,
        rows: factors.rows,
        // one for a whole row, whatever its length
        inputs: factors.inputs.next_multiple_of(8),
        per_matrix: true,
    });
    let what = format!("tensor {}", weight.parts[0].tensor);
    let format = (weight.ty, shape);
    Ok(rows.blocks(weight, |bytes| ProductWeight::upload(device, &what, format, bytes, scales))??)
}

/// Says of a device without room by how much the weights exceed it.
fn too_much(error: BackendError, needed: u64) -> BackendError {
    let BackendError::Device(inner) = error else { return error };
    match inner.downcast::<GpuError>() {
        Ok(inner) => match *inner {
            GpuError::OutOfMemory { device, in_use, .. } => {
                GpuError::TooManyWeights { device, needed, missing: needed.saturating_sub(in_use) }.into()
            }
            inner => inner.into(),
        },
        Err(inner) => BackendError::Device(inner),
    }
}

/// Bytes on the device of the weights of these stages, whose parts of projections are counted as wholes.
pub(crate) fn total_bytes(stages: &[Stage]) -> u64 {
    let bytes = |(weight, part): &(&Weight, Part)| match part {
        Part::Product => weight.bytes() as u64,
        _ => 4 * weight.elements() as u64,
    };
    used(stages).iter().map(bytes).sum()
}

fn bytes(weight: &Weight, part: Part, config: &ModelConfig) -> u64 {
    if part == Part::Product {
        return weight.bytes() as u64;
    }
    let (matrices, outputs, inputs) = shape(weight, part, config);
    4 * (matrices * outputs * inputs) as u64
}

/// Matrices, outputs and inputs of a part.
fn shape(weight: &Weight, part: Part, config: &ModelConfig) -> (usize, usize, usize) {
    let a = &config.attention;
    match part {
        Part::Product | Part::Whole => (weight.matrices(), weight.outputs(), weight.inputs()),
        Part::Keys => (a.heads, a.nope, a.kv_lora_rank),
        Part::KeysTransposed => (a.heads, a.kv_lora_rank, a.nope),
        Part::Values => (a.heads, a.v, a.kv_lora_rank),
    }
}

/// Which part of a weight an operation uses; none where it reads it on the host.
pub(crate) fn part(op: Op, slot: &str) -> Option<Part> {
    match op {
        Op::Embed { .. } => None,
        Op::Linear | Op::ExpertMlp => Some(Part::Product),
        Op::AbsorbK => Some(Part::KeysTransposed),
        Op::AbsorbV => Some(Part::Values),
        // kv_b is both: see `parts`
        Op::AttendExpanded | Op::ExpandedStore if slot == "v_b" => Some(Part::Values),
        Op::AttendExpanded | Op::ExpandedStore => Some(Part::Keys),
        _ => Some(Part::Whole),
    }
}

/// Every part of the weight in this slot that the node uses.
fn parts(node: &Node, slot: &str) -> Vec<Part> {
    let expands = matches!(node.op, Op::AttendExpanded | Op::ExpandedStore);
    let values = (expands && slot == "kv_b").then_some(Part::Values);
    part(node.op, slot).into_iter().chain(values).collect()
}

/// The weights of the stages with the parts that are used, each once.
fn used(stages: &[Stage]) -> Vec<(&Weight, Part)> {
    let (mut used, mut known) = (Vec::new(), HashSet::new());
    for plan in stages.iter().flat_map(|stage| &stage.plans) {
        for node in &plan.ir.nodes {
            for (slot, id) in &node.weights {
                let weight = plan.ir.weight(*id);
                for part in parts(node, slot) {
                    if known.insert((&weight.parts[0].tensor, part)) {
                        used.push((weight, part));
                    }
                }
            }
        }
    }
    used
}

/// The weight of a node in the first of these slots that it has.
pub(crate) fn slot(node: &Node, slots: &[&str]) -> Option<WeightId> {
    slots.iter().find_map(|slot| node.weight(slot))
}

fn send(
    device: &Arc<Device>,
    weight: &Weight,
    part: Part,
    config: &ModelConfig,
    rows: WeightRows<'_>,
) -> Result<DeviceWeight, BackendError> {
    let (matrices, outputs, inputs) = shape(weight, part, config);
    let what = weight.label();
    let row_bytes = 4 * inputs;
    let whole = |matrices: Range<usize>, outputs: Range<usize>| -> Result<Chunk, BackendError> {
        let bytes = matrices.len() as u64 * outputs.len() as u64 * row_bytes as u64;
        Ok(Chunk { buffer: Buffer::new(device, &what, bytes)?, matrices, outputs })
    };
    let pieces = if matrices == 1 {
        chunks(&device.limits, outputs, row_bytes).into_iter().map(|rows| whole(0..1, rows)).collect()
    } else {
        let cut = chunks(&device.limits, matrices, outputs * row_bytes);
        cut.into_iter().map(|matrices| whole(matrices, 0..outputs)).collect::<Result<Vec<_>, _>>()
    };
    let chunks = pieces?;
    let at_once = (PIECE / row_bytes.max(1)).max(1);
    for chunk in &chunks {
        let mut at = 0;
        for matrix in chunk.matrices.clone() {
            let step = if part == Part::Whole { at_once } else { outputs };
            for first in chunk.outputs.clone().step_by(step) {
                let range = first..chunk.outputs.end.min(first + step);
                let elements = elements(weight, part, config, rows, matrix, range)?;
                let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
                chunk.buffer.write(&what, at, &bytes)?;
                at += bytes.len() as u64;
            }
        }
    }
    Ok(DeviceWeight { matrices, outputs, inputs, chunks })
}

/// Rows of one matrix of a part; of a part of a head always all of them.
fn elements(
    weight: &Weight,
    part: Part,
    config: &ModelConfig,
    rows: WeightRows<'_>,
    matrix: usize,
    range: Range<usize>,
) -> Result<Vec<f32>, BackendError> {
    let a = &config.attention;
    let (nope, v, latent) = (a.nope, a.v, a.kv_lora_rank);
    // one matrix with each head's keys and then its values, or a matrix for each head, that of keys transposed
    let combined = weight.shape.len() == 2;
    let first = matrix * (nope + v);
    match part {
        Part::Product | Part::Whole => rows.rows(weight, matrix, range),
        Part::Values if combined => rows.rows(weight, 0, first + nope..first + nope + v),
        Part::Values => rows.rows(weight, matrix, 0..v),
        Part::Keys if combined => rows.rows(weight, 0, first..first + nope),
        Part::Keys => Ok(transposed(&rows.rows(weight, matrix, 0..latent)?, nope)),
        Part::KeysTransposed if combined => {
            Ok(transposed(&rows.rows(weight, 0, first..first + nope)?, latent))
        }
        Part::KeysTransposed => rows.rows(weight, matrix, 0..latent),
    }
}

/// Columns become rows.
fn transposed(elements: &[f32], width: usize) -> Vec<f32> {
    let height = elements.len() / width.max(1);
    (0..elements.len()).map(|i| elements[i % height * width + i / height]).collect()
}
