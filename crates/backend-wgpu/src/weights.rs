//! Weights on the device: matrices in the blocks of the file, vectors decoded to f32.

use crate::buffers::{Buffer, float_bytes, whole};
use crate::device::Device;
use crate::error::GpuError;
use crate::matmul::products::ProductContext;
use crate::matmul::weight::{DeviceWeight as ProductWeight, DeviceWeightShape, HostScales};
use crate::values::internal;
use latent_backend::{BackendError, CheckpointRows};
use latent_graph::circuit::Weight;
use latent_graph::ir::{ModelSpan, Node, Op, WeightId};
use latent_graph::{ModelConfig, Plan, Stage};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// How a weight is stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WeightStorage {
    /// A vector in f32.
    Vector,
    /// Matrices of products, in the blocks of the file.
    Matrices,
    /// An embedding whose rows are looked up, in the blocks of the file.
    Table,
    /// One matrix per head, in the blocks of the file. A matrix of all heads is cut.
    Heads,
}

pub(crate) struct DeviceVector {
    pub(crate) buffer: Buffer,
    pub(crate) len: usize,
}

/// The weights of a model.
pub(crate) struct DeviceWeights {
    vectors: HashMap<String, Arc<DeviceVector>>,
    products: HashMap<String, Arc<ProductWeight>>,
}

impl DeviceWeights {
    pub(crate) fn vector(&self, weight: &Weight) -> Result<Arc<DeviceVector>, BackendError> {
        let found = self.vectors.get(weight.key());
        found.map_or_else(
            || internal(format!("{} was not loaded as a vector", weight.label())),
            |vector| Ok(Arc::clone(vector)),
        )
    }

    /// A weight of products.
    pub(crate) fn product(&self, weight: &Weight) -> Result<Arc<ProductWeight>, BackendError> {
        let found = self.products.get(weight.key());
        found.map_or_else(
            || internal(format!("{} was not loaded for products", weight.label())),
            |weight| Ok(Arc::clone(weight)),
        )
    }

    /// The table of an embedding. None if the device has no room for it, so that the host looks up
    /// rows, or if no row needs it.
    pub(crate) fn table(&self, weight: &Weight) -> Option<Arc<ProductWeight>> {
        self.products.get(weight.key()).map(Arc::clone)
    }

    /// Uploads every weight that the plans use. `progress` is called with the bytes done and the
    /// total.
    pub(crate) fn load(
        products: &Arc<ProductContext>,
        stages: &[Stage],
        config: &ModelConfig,
        rows: CheckpointRows<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DeviceWeights, BackendError> {
        let used = used(stages);
        let needed = total_bytes(stages);
        let total = used.iter().map(|(weight, _)| weight.bytes() as u64).sum();
        let mut loaded = DeviceWeights { vectors: HashMap::new(), products: HashMap::new() };
        let mut done = 0;
        for (weight, form) in used {
            let name = weight.key().to_owned();
            if form == WeightStorage::Vector {
                let sent =
                    send_vector(products.device(), weight, rows).map_err(|error| too_much(error, needed))?;
                loaded.vectors.insert(name, Arc::new(sent));
            } else {
                let heads = if form == WeightStorage::Heads { config.attention.heads } else { 1 };
                let sent = send_blocks(products, weight, heads, rows);
                match sent {
                    // The host looks up rows of the table instead.
                    Err(error) if form == WeightStorage::Table && is_too_much(&error) => {}
                    sent => {
                        let sent = sent.map_err(|error| too_much(error, needed))?;
                        loaded.products.insert(name, Arc::new(sent));
                    }
                }
            }
            // Also for a table that was left out, so that the progress reaches the total.
            done += weight.bytes() as u64;
            progress(done, total);
        }
        Ok(loaded)
    }
}

/// Decodes and uploads a vector.
fn send_vector(
    device: &Arc<Device>,
    weight: &Weight,
    rows: CheckpointRows<'_>,
) -> Result<DeviceVector, BackendError> {
    // The taps of a convolution are a matrix with a row per channel.
    let elements = match weight.outputs() {
        1 => rows.vector(weight)?,
        channels => rows.rows(weight, 0, 0..channels)?,
    };
    let buffer = Buffer::with(device, &weight.label(), &float_bytes(&elements))?;
    Ok(DeviceVector { buffer, len: elements.len() })
}

/// Uploads a weight's blocks and the separate factors of its file. A single matrix is cut into one
/// matrix per head.
fn send_blocks(
    products: &Arc<ProductContext>,
    weight: &Weight,
    heads: usize,
    rows: CheckpointRows<'_>,
) -> Result<ProductWeight, BackendError> {
    let (matrices, outputs) = (weight.matrices(), weight.outputs());
    let cut = matrices == 1 && heads > 1;
    let (matrices, outputs) = if cut { (heads, outputs / heads) } else { (matrices, outputs) };
    let shape = DeviceWeightShape { inputs: weight.inputs(), outputs, matrices };
    let factors = rows.factors(weight)?;
    let scales = factors.as_ref().map(|factors| HostScales {
        numbers: &factors.numbers,
        rows: factors.rows,
        // Shaders read weights eight inputs at a time; a factor of a whole row has its length
        // rounded up.
        inputs: factors.inputs.next_multiple_of(8),
        per_matrix: !cut,
    });
    let what = format!("tensor {}", weight.key());
    let format = (weight.ty, shape);
    Ok(rows.blocks(weight, |bytes| ProductWeight::upload_for(products, &what, format, bytes, scales))??)
}

/// Whether the error says that the device has no room.
fn is_too_much(error: &BackendError) -> bool {
    let BackendError::Device(inner) = error else { return false };
    matches!(inner.downcast_ref(), Some(GpuError::OutOfMemory { .. } | GpuError::TooLarge { .. }))
}

/// Replaces an out-of-memory error by one that names the size of all weights and the missing bytes.
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

/// Device memory of the weights of these stages.
pub(crate) fn total_bytes(stages: &[Stage]) -> u64 {
    let bytes = |(weight, form): &(&Weight, WeightStorage)| match form {
        WeightStorage::Vector => whole(4 * weight.elements() as u64),
        WeightStorage::Matrices | WeightStorage::Table | WeightStorage::Heads => whole(weight.bytes() as u64),
    };
    used(stages).iter().map(bytes).sum()
}

/// The storage of an operation's weights.
fn form(op: Op) -> WeightStorage {
    match op {
        Op::Embed { .. } => WeightStorage::Table,
        Op::Linear | Op::ExpertMlp => WeightStorage::Matrices,
        Op::AbsorbK | Op::AbsorbV | Op::AttendExpanded | Op::ExpandedStore => WeightStorage::Heads,
        _ => WeightStorage::Vector,
    }
}

/// Whether rows of a stage may be tokens.
fn starts_from_tokens(span: &ModelSpan) -> bool {
    // Behind a cut (layers on the CPU come first) all rows are embeddings, so the table is not
    // needed.
    // The MTP layer looks up the next token of each row in any case.
    span.mtp || span.layers.start == 0
}

/// The distinct weights of the stages, tables last.
fn used(stages: &[Stage]) -> Vec<(&Weight, WeightStorage)> {
    let (mut used, mut known) = (Vec::new(), HashSet::new());
    let nodes = || {
        let plans = stages.iter().flat_map(|stage| &stage.plans);
        plans.flat_map(|plan| plan.ir.nodes.iter().map(move |node| (plan, node)))
    };
    // Tables come last, since the model runs without them if the device is full.
    for tables in [false, true] {
        let wanted = |plan: &Plan, node: &Node| match form(node.op) {
            WeightStorage::Table => tables && starts_from_tokens(&plan.span),
            _ => !tables,
        };
        for (plan, node) in nodes().filter(|(plan, node)| wanted(plan, node)) {
            let own = node.weights.iter().map(|(_, id)| (*id, form(node.op)));
            let folded = node.prologue.norm.map(|id| (id, WeightStorage::Vector));
            for (id, form) in own.chain(folded) {
                let weight = plan.ir.weight(id);
                let name = weight.key();
                // A tied embedding is uploaded once, as the weight of the logits.
                let there = tables && known.contains(&(name, WeightStorage::Matrices));
                if !there && known.insert((name, form)) {
                    used.push((weight, form));
                }
            }
        }
    }
    used
}

/// The weight of a node in the first of these slots that is filled.
pub(crate) fn slot(node: &Node, slots: &[&str]) -> Option<WeightId> {
    slots.iter().find_map(|slot| node.weight(slot))
}
