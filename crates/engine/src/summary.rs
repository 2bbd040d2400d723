//! A summary of the decisions made at loading, for users.

use crate::memory::MemoryOvercommit;
use crate::offload::BackendPlan;
use crate::options::ResolvedOptions;
use latent_backend::WeightBytes;
use latent_formats::Checkpoint;
use latent_graph::ir::Op;
use latent_graph::{ModelConfig, Stage, distinct_weights};
use latent_threads::Placement;
use latent_types::{CacheType, KernelContract, Setting, Tier};
use std::time::Duration;

/// A model that was trained with sparse attention runs with dense attention, and the context is
/// larger than the number of selected tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseAttention {
    /// The number of tokens that each row attends to in the model's own code.
    pub index_topk: usize,
    /// The context size, in tokens.
    pub context: usize,
}

impl std::fmt::Display for DenseAttention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DenseAttention { index_topk, context } = self;
        write!(
            f,
            "the model was trained with sparse attention to {index_topk} tokens, but runs with dense \
             attention: results may differ beyond {index_topk} tokens (the context holds {context}; {} \
             avoids this)",
            Setting::Context.to(index_topk)
        )
    }
}

/// The first layers of a model, which run on another backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontSummary {
    /// The name of the backend.
    pub backend: &'static str,
    /// Number of layers on that backend.
    pub layers: usize,
    /// Number of layers of the model.
    pub of: usize,
    /// The chosen ISA tier.
    pub tier: Tier,
    /// Matrix kernels in use.
    pub kernels: Vec<String>,
}

/// The decisions of the engine when it loaded a model.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The name of the model or of its file.
    pub name: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the weights, in bytes.
    pub weight_bytes: u64,
    /// The overcommitted memory, if mapped weights do not fit and are paged.
    pub paged: Option<MemoryOvercommit>,
    /// Time from the opened file to an engine that is ready for its first step.
    pub load_time: Duration,
    /// The chosen ISA tier.
    pub tier: Tier,
    /// The name of the backend.
    pub backend: &'static str,
    /// The device, if it is not the host's CPU.
    pub device: Option<String>,
    /// Host threads and their placement.
    pub placement: Placement,
    /// Element type of the KV cache.
    pub cache: CacheType,
    /// Size of a token in the KV cache, in bytes.
    pub token_bytes: usize,
    /// Size of the recurrent state of one sequence, in bytes. 0 for models without recurrent
    /// layers.
    pub state_bytes: usize,
    /// The first layers, if they run on another backend.
    pub front: Option<FrontSummary>,
    /// Context size, in tokens.
    pub context: usize,
    /// Matrix kernels in use.
    pub kernels: Vec<String>,
    /// Operations that run in portable code although the tier is higher.
    pub portable: Vec<String>,
    /// Number of kernels of the plans that were chosen by measured times. `None` without such
    /// times.
    pub timed: Option<usize>,
    /// Set if dense attention may differ from the sparse attention that the model was trained with.
    pub dense: Option<DenseAttention>,
    /// Warnings about keys of config.json that are overridden, and about the build.
    pub warnings: Vec<String>,
    /// Audit findings about a circuit of the user's own.
    pub doubts: Vec<latent_graph::audit::Finding>,
}

impl Summary {
    /// The summary before the weights are loaded.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        resolved: &ResolvedOptions<'_>,
        stages: &[Stage],
        weights: WeightBytes,
    ) -> Summary {
        let tier = resolved.options.stages.bind.tier;
        let (kernels, portable) = products(stages, resolved.target.contracts(), tier);
        let file = checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
        Summary {
            name: config.name.clone().or(file).unwrap_or_default(),
            // Distinct, since stages share weights: the head of a tied model is the embedding.
            parameters: distinct_weights(stages).map(|w| w.elements() as u64).sum(),
            weight_bytes: weights.owned + weights.mapped,
            paged: None,
            load_time: Duration::ZERO,
            tier,
            backend: resolved.backend.name(),
            device: resolved.backend.device(),
            placement: Placement::anywhere(resolved.options.threads),
            cache: resolved.options.stages.bind.cache,
            token_bytes: resolved.token_bytes(stages),
            state_bytes: config.state_bytes(),
            front: None,
            context: resolved.options.context,
            kernels,
            portable,
            timed: resolved.target.tuned.as_ref().map(|_| timed(stages)),
            dense: dense(config, resolved.options.context),
            warnings: Vec::new(),
            doubts: Vec::new(),
        }
    }
}

impl Summary {
    /// Adds the plans of the front. `all` are the stages of both sides.
    pub(crate) fn add_front(&mut self, front: &BackendPlan<'_>, config: &ModelConfig, all: &[Stage]) {
        let BackendPlan { resolved, stages, weights } = front;
        let tier = resolved.options.stages.bind.tier;
        let (kernels, portable) = products(stages, resolved.target.contracts(), tier);
        self.portable.extend(portable);
        self.timed = self.timed.map(|count| count + timed(stages));
        self.parameters = distinct_weights(all).map(|w| w.elements() as u64).sum();
        self.weight_bytes += weights.owned + weights.mapped;
        self.token_bytes += resolved.token_bytes(stages);
        let layers = stages.iter().map(|stage| stage.plans[0].span.layers.len()).sum();
        let (backend, of) = (resolved.backend.name(), config.layers);
        self.front = Some(FrontSummary { backend, layers, of, tier, kernels });
    }
}

fn dense(config: &ModelConfig, context: usize) -> Option<DenseAttention> {
    // The indexer is removed from the config if attention is dense. Up to `index_topk` tokens, both
    // forms of attention are the same.
    config
        .index_topk
        .filter(|_| config.attention.indexer.is_none())
        .filter(|index_topk| context > *index_topk)
        .map(|index_topk| DenseAttention { index_topk, context })
}

/// Number of kernels that were chosen by measured times.
fn timed(stages: &[Stage]) -> usize {
    let plans = stages.iter().flat_map(|stage| &stage.plans);
    let kernels = plans.flat_map(|plan| &plan.ir.nodes).flat_map(|node| &node.kernels);
    kernels.filter(|kernel| kernel.decided_by.is_some()).count()
}

/// The kernels of matrix products and naive attention, and the operations that run in portable code
/// although `tier` is higher.
fn products(stages: &[Stage], contracts: &[KernelContract], tier: Tier) -> (Vec<String>, Vec<String>) {
    let (mut kernels, mut portable) = (Vec::new(), Vec::new());
    let add = |list: &mut Vec<String>, word: String| {
        if !list.contains(&word) {
            list.push(word);
        }
    };
    let is_product = |op: Op| {
        use Op::{AbsorbK, AbsorbV, AttendExpanded, ExpertDown, ExpertGateUp, Linear};
        matches!(op, Linear | AbsorbK | AbsorbV | ExpertGateUp | ExpertDown | AttendExpanded)
    };
    for plan in stages.iter().flat_map(|stage| &stage.plans) {
        for node in plan.ir.nodes.iter().filter(|node| is_product(node.op)) {
            for (kernel, (_, weight)) in node.kernels.iter().zip(&node.weights) {
                add(&mut kernels, kernel.name.clone());
                // A kernel that measured times have chosen is not slow, whatever its tier.
                let needs = contracts.get(kernel.index).map_or(tier, |contract| contract.tier);
                let slow = kernel.decided_by.is_none() && tier > Tier::Portable;
                if needs == Tier::Portable && slow {
                    add(&mut portable, format!("{} of {}", node.op.word(), plan.ir.weight(*weight).ty));
                }
            }
        }
    }
    (kernels, portable)
}
