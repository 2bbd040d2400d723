//! The interpreter: runs one node after the other. Each value is a matrix of its own.

use crate::kv::HostKvStore;
use crate::products::product;
use crate::recurrent::ToyRecurrence;
use latent_backend::{BackendError, Batch, CheckpointRows, RankLinks, Rotation, SeqSpan};
use latent_graph::ir::{AttentionPath, Ir, Node, Op, ValueId, ValueStorage};
use latent_graph::{GraphError, ModelConfig, Plan};
use std::collections::HashMap;

/// A step of one stage.
pub(super) struct Interpreter<'a> {
    pub plan: &'a Plan,
    pub config: &'a ModelConfig,
    pub weights: CheckpointRows<'a>,
    pub rotation: &'a Rotation,
    pub batch: &'a Batch,
    pub kv: &'a mut HostKvStore,
    /// The layer of the cache that is the first KV layer of the plan.
    pub first_kv_layer: usize,
    /// Toy recurrences that are applied to the rows of the embedding before the first layer.
    pub recurrences: &'a [ToyRecurrence],
    /// The rows of the stage: all of the batch, or those whose logits are wanted.
    pub rows: usize,
    /// The other ranks, if several share the model.
    pub links: Option<&'a RankLinks>,
    /// The residual stream from the previous stage, one row for each row of the batch.
    pub hidden: &'a mut Vec<f32>,
    /// The values that were computed so far, rows × heads × width.
    pub values: HashMap<ValueId, Vec<f32>>,
    /// Values of whole numbers: ids of experts, and positions that the indexer selected.
    pub ids: HashMap<ValueId, Vec<u32>>,
}

/// The error of a plan that this interpreter cannot run. Such a plan is a fault of Latent, not of
/// the model.
pub(super) fn internal<T>(problem: String) -> Result<T, BackendError> {
    Err(BackendError::Graph(GraphError::Internal { pass: "reference backend", problem }))
}

impl Interpreter<'_> {
    pub fn ir(&self) -> &Ir {
        &self.plan.ir
    }

    /// The value of input `i`.
    pub fn input(&self, node: &Node, i: usize) -> Result<&Vec<f32>, BackendError> {
        let id = node.inputs[i];
        match self.values.get(&id) {
            Some(value) => Ok(value),
            // Residual rows of the previous stage.
            None if self.ir().value(id).storage == ValueStorage::Hidden => Ok(self.hidden),
            None => internal(format!(
                "{} reads {}, which was not computed",
                node.op.word(),
                self.ir().value(id).name
            )),
        }
    }

    fn links(&self) -> Result<&RankLinks, BackendError> {
        self.links.map_or_else(|| internal("a collective without other ranks".into()), Ok)
    }

    /// The value at a port; empty if the node does not use the port.
    pub fn input_at(&self, node: &Node, port: &str) -> Result<Vec<f32>, BackendError> {
        match node.input_ports().position(|of| of.name == port) {
            Some(i) => Ok(self.input(node, i)?.clone()),
            None => Ok(Vec::new()),
        }
    }

    /// Spans of the batch that attend on this path.
    pub fn spans(&self, path: AttentionPath) -> Vec<SeqSpan> {
        self.batch.on_path(path).cloned().collect()
    }

    /// Stores a result. Two nodes on different attention paths compute different rows of one value.
    pub fn set(&mut self, node: &Node, output: usize, made: Vec<f32>) {
        let id = node.outputs[output];
        if node.path == AttentionPath::All || !self.values.contains_key(&id) {
            self.values.insert(id, made);
            return;
        }
        // The value has the rows of the other path already: only those of this path are replaced.
        let width = made.len() / self.rows.max(1);
        for span in self.spans(node.path) {
            let range = span.rows.start * width..span.rows.end * width;
            if let Some(value) = self.values.get_mut(&id) {
                value[range.clone()].copy_from_slice(&made[range]);
            }
        }
    }

    pub fn execute(&mut self, node: &Node) -> Result<(), BackendError> {
        match node.op {
            Op::Embed { scale } => self.embed(node, scale)?,
            Op::RmsNorm => {
                let slot = self.ir().weight(node.weights[0].1);
                let (weight, eps) = (self.weights.vector(slot)?, self.config.norm_eps(&slot.slot));
                let rows = self.input(node, 0)?.chunks_exact(weight.len());
                let made = rows.flat_map(|row| rms_norm(row, &weight, eps)).collect();
                self.set(node, 0, made);
            }
            Op::Linear => {
                for (output, (_, id)) in node.weights.iter().enumerate() {
                    let weight = self.ir().weight(*id);
                    let (x, rows) = (self.input(node, 0)?, 0..weight.outputs());
                    let made = product(self.weights, weight, 0, rows, x)?;
                    self.set(node, output, made);
                }
            }
            Op::LoraAdd => self.lora_add(node)?,
            Op::LoraAbsorbK => self.lora_absorb_k(node)?,
            Op::LoraAbsorbV => self.lora_absorb_v(node)?,
            Op::Split => self.split(node)?,
            Op::Rope => {
                let (mut made, heads) = (self.input(node, 0)?.clone(), self.ir().value(node.inputs[0]).heads);
                let width = self.ir().value(node.inputs[0]).width;
                for (i, head) in made.chunks_exact_mut(width).enumerate() {
                    self.rotation.rotate(head, self.batch.positions[i / heads]);
                }
                self.set(node, 0, made);
            }
            Op::Silu => {
                let made = self.input(node, 0)?.iter().map(|x| silu(*x)).collect();
                self.set(node, 0, made);
            }
            Op::SiluMul => {
                let pairs = self.input(node, 0)?.iter().zip(self.input(node, 1)?);
                let made = pairs.map(|(gate, up)| silu(*gate) * up).collect();
                self.set(node, 0, made);
            }
            Op::SigmoidMul => {
                let (x, gate) = (self.input(node, 0)?, self.input(node, 1)?);
                let width = x.len() / gate.len();
                let made = x.iter().enumerate().map(|(i, x)| x * sigmoid(gate[i / width])).collect();
                self.set(node, 0, made);
            }
            Op::ShortConv => self.short_conv(node)?,
            Op::L2Norm { scale } => self.l2_norm(node, scale)?,
            Op::SoftplusDecay => self.log_decay(node, None)?,
            Op::BoundedDecay { bound } => self.log_decay(node, Some(bound))?,
            Op::DeltaRule => self.delta_rule(node)?,
            Op::GatedNorm => self.gated_norm(node)?,
            Op::Relu2 => {
                let made = self.input(node, 0)?.iter().map(|x| x.max(0.0) * x.max(0.0)).collect();
                self.set(node, 0, made);
            }
            Op::Add { scale } => {
                let pairs = self.input(node, 0)?.iter().zip(self.input(node, 1)?);
                let made = pairs.map(|(a, b)| a + scale as f32 * b).collect();
                self.set(node, 0, made);
            }
            Op::Bias => {
                let bias = self.weights.vector(self.ir().weight(node.weights[0].1))?;
                let rows = self.input(node, 0)?.chunks_exact(bias.len());
                let made = rows.flat_map(|row| row.iter().zip(&bias).map(|(x, b)| x + b)).collect();
                self.set(node, 0, made);
            }
            Op::Scale { by } => {
                let made = self.input(node, 0)?.iter().map(|x| by as f32 * x).collect();
                self.set(node, 0, made);
            }
            Op::Concat => {
                let widths = [0, 1].map(|i| self.ir().value(node.inputs[i]).row_width());
                let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
                let rows = a.chunks_exact(widths[0]).zip(b.chunks_exact(widths[1]));
                let made = rows.flat_map(|(a, b)| [a, b].concat()).collect();
                self.set(node, 0, made);
            }
            Op::GatherRows => {
                let width = self.config.hidden_size;
                let rows = self.batch.wanted.iter().map(|row| *row as usize);
                let hidden = self.input(node, 0)?;
                let made = rows.flat_map(|row| hidden[row * width..(row + 1) * width].to_vec()).collect();
                self.set(node, 0, made);
            }
            Op::Route => self.route(node)?,
            Op::ExpertMlp => self.expert_mlp(node)?,
            Op::LatentStore => self.store(node)?,
            Op::KvLoraDecompress => self.decompress(node)?,
            Op::PartialRopeConcat => self.join_keys(node)?,
            Op::KeyValueStore => self.store_expanded(node)?,
            Op::IndexStore => self.index_store(node)?,
            Op::IndexSelect => self.index_select(node)?,
            Op::AbsorbK => self.absorb_query(node)?,
            Op::AttendLatent | Op::AttendSeparate => self.attend_latent(node)?,
            Op::AbsorbV => self.project_value(node)?,
            Op::AttendExpanded => self.attend_expanded(node)?,
            Op::AllReduce => {
                let mut sums = self.input(node, 0)?.clone();
                self.links()?.all_reduce(&mut sums)?;
                self.set(node, 0, sums);
            }
            Op::SendRows => self.links()?.send_rows(self.input(node, 0)?)?,
            Op::ReceiveRows => {
                let mut rows = vec![0.0; self.rows * self.config.hidden_size];
                // In a pipeline, `collect` receives the rows that return from the last rank, so
                // that the next step can begin meanwhile.
                if !self.links()?.leaves_returned() {
                    self.links()?.receive_rows(&mut rows)?;
                }
                self.set(node, 0, rows);
            }
            Op::MlaAttention | Op::ExpandedStore | Op::ExpertGateUp | Op::ExpertDown => {
                return internal(format!("{} is not an operation of its plans", node.op.word()));
            }
        }
        Ok(())
    }

    /// Splits each head into consecutive parts.
    fn split(&mut self, node: &Node) -> Result<(), BackendError> {
        let whole = self.input(node, 0)?.clone();
        let width = self.ir().value(node.inputs[0]).width;
        let mut from = 0;
        for output in 0..node.outputs.len() {
            let part = self.ir().value(node.outputs[output]).width;
            let made = whole.chunks_exact(width).flat_map(|head| head[from..from + part].to_vec()).collect();
            self.set(node, output, made);
            from += part;
        }
        Ok(())
    }
}

/// x / √(mean x² + ε) · w. The norm is rounded to f32 before it is multiplied by the weight.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let mean = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * factor) as f32 * w).collect()
}

/// 1 / (1 + e⁻ˣ).
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// x / (1 + e⁻ˣ).
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
