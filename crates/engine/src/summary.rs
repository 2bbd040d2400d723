//! What was decided at loading, for people.

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

/// A model that was trained with sparse attention, in a session that may hold more tokens than such attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseAttention {
    /// To how many tokens each attends in the model's own code.
    pub index_topk: usize,
    /// Tokens that the session may hold.
    pub context: usize,
}

impl std::fmt::Display for DenseAttention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DenseAttention { index_topk, context } = self;
        write!(
            f,
            "the model was trained with sparse attention to {index_topk} tokens, and it attends to all here, which is the same up to \
             {index_topk} tokens and may answer otherwise beyond (the context holds {context}; {} keeps within)",
            Setting::Context.to(index_topk)
        )
    }
}

/// The first layers of a model, which another backend runs than the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontSummary {
    /// The backend.
    pub backend: &'static str,
    /// How many they are.
    pub layers: usize,
    /// How many the model has.
    pub of: usize,
    /// The tier chosen.
    pub tier: Tier,
    /// Matrix kernels in use.
    pub kernels: Vec<String>,
}

/// What the engine decided when it loaded a model.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The model's name, or its file's.
    pub name: String,
    /// Weights, counted as numbers.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// How little memory there is for mapped weights, where they do not fit.
    pub paged: Option<MemoryOvercommit>,
    /// From the opened file to an engine that is ready for the first step.
    pub load_time: Duration,
    /// The tier chosen.
    pub tier: Tier,
    /// The backend.
    pub backend: &'static str,
    /// What that runs on where it is not the host's CPU.
    pub device: Option<String>,
    /// Host threads, and where they run.
    pub placement: Placement,
    /// Type of the cache.
    pub cache: CacheType,
    /// Bytes that a token takes in it.
    pub token_bytes: usize,
    /// Bytes of the recurrent state of one sequence; 0 of models without.
    pub state_bytes: usize,
    /// The first layers, where another backend runs them.
    pub front: Option<FrontSummary>,
    /// Tokens that it holds.
    pub context: usize,
    /// Matrix kernels in use.
    pub kernels: Vec<String>,
    /// Operations that run in portable code although the tier is higher.
    pub portable: Vec<String>,
    /// How many kernels of the plans measured times have decided on; none without times.
    pub timed: Option<usize>,
    /// Where a sequence may grow so long that attention to all tokens is not what the model was trained with.
    pub dense: Option<DenseAttention>,
    /// What config.json says that something else in the folder overrides.
    pub warnings: Vec<String>,
    /// What the audit finds strange about a circuit of the user's own.
    pub doubts: Vec<latent_graph::audit::Finding>,
}

impl Summary {
    /// What is known before the weights are loaded.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        resolved: &ResolvedOptions<'_>,
        stages: &[Stage],
        weights: WeightBytes,
    ) -> Summary {
        let tier = resolved.options.stages.bind.tier;
        let (kernels, portable) = products(stages, resolved.target.contracts(), tier);
        // the head of a tied model is the embedding: stages share weights
        let file = checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
        Summary {
            name: config.name.clone().or(file).unwrap_or_default(),
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
    /// Adds what runs before the plans that the summary was made of; `all` are the plans of both.
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
    config
        .index_topk
        .filter(|_| config.attention.indexer.is_none())
        .filter(|index_topk| context > *index_topk)
        .map(|index_topk| DenseAttention { index_topk, context })
}

/// How many kernels measured times have decided on.
fn timed(stages: &[Stage]) -> usize {
    let plans = stages.iter().flat_map(|stage| &stage.plans);
    let kernels = plans.flat_map(|plan| &plan.ir.nodes).flat_map(|node| &node.kernels);
    kernels.filter(|kernel| kernel.decided_by.is_some()).count()
}

/// The kernels of matrix products and naive attention, and the operations that run portable code although `tier` has more.
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
