//! Data shared by the views of a drawing: weights, kernel bindings and blocks, each stored once.

use crate::data::{DrawingBlock, KernelBinding, RejectedKernel, WeightInfo};
use crate::device::DeviceRuns;
use crate::options::Options;
use latent_graph::circuit::{Circuit, LayerSpec};
use latent_graph::config::ModelConfig;
use latent_graph::ir::{Ir, Node, StepWorkload};
use latent_graph::passes::{BatchBucket, KernelRequest, MeasuredProduct, binding_bucket};
use latent_graph::{BackendTarget, GraphError, ProductShape};
use latent_types::{KernelContract, OpKind, TensorType, WeightLayout};
use std::collections::HashMap;

/// The parts of a drawing that views refer to by index.
pub(crate) struct Builder<'a> {
    pub(crate) circuit: &'a Circuit,
    pub(crate) config: &'a ModelConfig,
    /// The blocks of each layer.
    pub(crate) layers: Vec<LayerSpec>,
    pub(crate) target: &'a BackendTarget,
    pub(crate) options: &'a Options,
    /// Kernel calls of operations on a device.
    pub(crate) runs: &'a DeviceRuns,
    pub(crate) weights: Vec<WeightInfo>,
    pub(crate) bindings: Vec<KernelBinding>,
    requests: HashMap<KernelKey, usize>,
    pub(crate) blocks: Vec<DrawingBlock>,
}

/// The inputs of a kernel choice: operation, format, bucket, and with measured times the shape of
/// the matmul.
type KernelKey = (OpKind, Option<TensorType>, BatchBucket, Option<ProductShape>);

/// The input of one view: an IR, and for a plan its phases, step and bucket.
pub(crate) struct ViewInput<'a> {
    pub(crate) ir: &'a Ir,
    /// The phase of each node.
    pub(crate) phases: Option<&'a [usize]>,
    /// The step that costs are counted for.
    pub(crate) step: Option<StepWorkload>,
    pub(crate) bucket: Option<BatchBucket>,
}

impl ViewInput<'_> {
    /// The bucket that a node's kernels are selected for.
    pub(crate) fn bucket_of(&self, node: &Node) -> Option<BatchBucket> {
        self.bucket.map(|bucket| binding_bucket(&node.op, bucket))
    }
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        circuit: &'a Circuit,
        config: &'a ModelConfig,
        target: &'a BackendTarget,
        (options, runs): (&'a Options, &'a DeviceRuns),
    ) -> Result<Builder<'a>, GraphError> {
        Ok(Builder {
            circuit,
            config,
            layers: circuit.layer_specs(config)?,
            target,
            options,
            runs,
            weights: Vec::new(),
            bindings: Vec::new(),
            requests: HashMap::new(),
            blocks: Vec::new(),
        })
    }

    /// The index of `block`. Views with equal blocks share one, so that the page is not many times
    /// larger.
    pub(crate) fn intern_block(&mut self, block: DrawingBlock) -> usize {
        intern(&mut self.blocks, block)
    }

    /// The index of `weight`.
    pub(crate) fn intern_weight(&mut self, weight: WeightInfo) -> usize {
        intern(&mut self.weights, weight)
    }

    /// The index of the kernel selected for a request, with the reasons for it and against each
    /// other kernel.
    pub(crate) fn binding(
        &mut self,
        (op, ty): (OpKind, Option<TensorType>),
        bucket: BatchBucket,
        measured: Option<MeasuredProduct<'_>>,
    ) -> Option<usize> {
        let key = (op, ty, bucket, measured.map(|measured| measured.shape));
        // Thousands of nodes share a few requests, and explaining one compares it with every
        // kernel.
        if let Some(found) = self.requests.get(&key) {
            return Some(*found);
        }
        let (bind, kernels) = (&self.options.bind, self.target.contracts());
        let request = KernelRequest::new(kernels, (op, ty), bind, bucket);
        let (chosen, times) = request.best(kernels, measured)?;
        let chosen = &kernels[chosen];
        let of_this = |k: &&KernelContract| k.op == op && k.weight.is_none_or(|w| Some(w) == ty);
        // Only kernels that could read this format; the others would explain nothing.
        let others = kernels.iter().filter(of_this).filter(|k| k.name != chosen.name).map(|k| {
            let refusal = request.refusal(k);
            let matches = refusal.is_none();
            let why = refusal.unwrap_or_else(|| {
                if times.is_some() {
                    "it matches, but was not measured to be clearly faster".to_owned()
                } else if k.tier < chosen.tier {
                    format!("it matches, but {} is higher than {}", chosen.tier, k.tier)
                } else {
                    "it matches, but reads any format; the one bound is written for this one".to_owned()
                }
            });
            RejectedKernel { kernel: k.name, why, matches }
        });
        let binding = KernelBinding {
            operation: op.name(),
            format: ty.map(TensorType::name),
            kernel: chosen.name,
            tier: chosen.tier.name(),
            activation: request.activation.name(),
            layout: request.layout.map(WeightLayout::name),
            why: request.why(chosen, times.as_deref()),
            others: others.collect(),
        };
        self.bindings.push(binding);
        self.requests.insert(key, self.bindings.len() - 1);
        Some(self.bindings.len() - 1)
    }
}

fn intern<T: PartialEq>(known: &mut Vec<T>, new: T) -> usize {
    // Linear search: a drawing has tens of blocks and a few hundred weights.
    known.iter().position(|other| *other == new).unwrap_or_else(|| {
        known.push(new);
        known.len() - 1
    })
}
