//! The target of a plan: the kernels of a backend, and the rewrites that pay off there.

use crate::kernel_timings::KernelTimings;
use latent_types::KernelContract;
use std::sync::Arc;

/// A backend, as the passes see it. Passes ask the target; nothing in this crate knows threads, registers or a GPU.
#[derive(Clone, Debug)]
pub struct BackendTarget {
    /// The backend's name, as `--device` spells it and as packed files state whose weight layout they have.
    pub name: &'static str,
    /// The contracts of the backend's kernels, which `select_kernels` chooses from; plans refer to them by index. `None` for a backend that
    /// computes every operation from its definition: nothing is chosen then.
    pub kernels: Option<Vec<KernelContract>>,
    /// The rewrites that pay.
    pub fusion: Fusion,
    /// How attention cuts the KV range of a row into splits that are computed side by side; `None` where it does not.
    pub kv_splits: Option<KvSplits>,
    /// Whether it runs the indexer of sparse attention, and attention to selected tokens.
    pub sparse_attention: bool,
    /// Whether attention to keys and values of heads leaves out tokens that are not selected.
    pub masks_tokens: bool,
    /// Whether it expands latents, joins keys and stores both in operations of their own, instead of one.
    pub expanded_stores: bool,
    /// Names of optional passes that plans do not go through, as a user asks to see what they are worth.
    pub without: Vec<&'static str>,
    /// Measured times of its kernels, which choose between instruction sets; without them the highest one is chosen.
    pub tuned: Option<Arc<KernelTimings>>,
    /// Whether it runs LoRA adapters.
    pub adapters: bool,
    /// How many workers (threads of a CPU) share the operations of a phase.
    pub workers: usize,
}

/// KV splits (flash decoding): with few rows in a step, workers share the KV range of each, and the partial results are combined where
/// they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSplits {
    /// Most splits of a row.
    pub most: usize,
    /// Heads of a row that are computed together at little more than the cost of one.
    pub head_group: usize,
    /// Splits are shared while rows × groups of heads are fewer than this for each worker: more rows keep all workers busy by themselves.
    pub groups_per_worker: usize,
    /// Rows of one sequence that read a split together: a step with at most this many rows shares
    /// splits, regardless of the number of heads.
    pub rows_together: usize,
}

impl KvSplits {
    /// Maximum rows of a step whose splits are shared by `workers`, if some rows belong to one
    /// sequence.
    pub fn rows(&self, heads: usize, workers: usize) -> usize {
        self.rows_apart(heads, workers).max(self.rows_together)
    }

    /// Like [`rows`](Self::rows), if each row belongs to another sequence.
    pub fn rows_apart(&self, heads: usize, workers: usize) -> usize {
        (self.groups_per_worker * workers).saturating_sub(1) / heads.div_ceil(self.head_group).max(1)
    }
}

/// Which optional passes run. Lowering MLA to a formulation is not optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Products that read the same input become one operation.
    pub projections: bool,
    /// The experts of a layer become two grouped products instead of one operation per layer.
    pub experts: bool,
    /// RMSNorm moves into each operation that reads its result: good where recomputing it is cheaper than another phase.
    pub norms: bool,
    /// The same into products, each of whose workers then repeats it; else only into what reads each row once.
    pub norms_in_products: bool,
    /// RoPE moves into the operation that reads the rotated part.
    pub ropes: bool,
    /// Activation functions and residual additions move into the product before them.
    pub epilogues: bool,
    /// Independent operations share a phase.
    pub phases: bool,
}

impl Fusion {
    /// Every optional pass: a CPU thread repeats a norm faster than it waits at a barrier.
    pub const ALL: Fusion = Fusion {
        projections: true,
        experts: true,
        norms: true,
        norms_in_products: true,
        ropes: true,
        epilogues: true,
        phases: true,
    };

    /// No optional pass: one operation per phase, as the circuit states them.
    pub const NONE: Fusion = Fusion {
        projections: false,
        experts: false,
        norms: false,
        norms_in_products: false,
        ropes: false,
        epilogues: false,
        phases: false,
    };
}

impl BackendTarget {
    /// A backend with these kernels, for which every rewrite pays.
    pub fn new(name: &'static str, kernels: Vec<KernelContract>) -> BackendTarget {
        BackendTarget {
            name,
            kernels: Some(kernels),
            fusion: Fusion::ALL,
            kv_splits: None,
            sparse_attention: false,
            masks_tokens: true,
            expanded_stores: false,
            without: Vec::new(),
            tuned: None,
            adapters: false,
            workers: 1,
        }
    }

    /// The same backend with another number of workers.
    #[must_use]
    pub fn with_workers(&self, workers: usize) -> BackendTarget {
        BackendTarget { workers, ..self.clone() }
    }

    /// The same backend without some optional passes.
    #[must_use]
    pub fn without(self, passes: &[&'static str]) -> BackendTarget {
        BackendTarget { without: passes.to_vec(), ..self }
    }

    /// The same backend with measured times of its kernels.
    #[must_use]
    pub fn tuned(self, tuned: Option<Arc<KernelTimings>>) -> BackendTarget {
        BackendTarget { tuned, ..self }
    }

    /// A backend without kernels of its own, which runs the operations as the circuit states them.
    pub fn unfused(name: &'static str) -> BackendTarget {
        BackendTarget {
            name,
            kernels: None,
            fusion: Fusion::NONE,
            kv_splits: None,
            sparse_attention: false,
            masks_tokens: true,
            expanded_stores: false,
            without: Vec::new(),
            tuned: None,
            adapters: false,
            workers: 1,
        }
    }

    /// The contracts to choose from; empty where nothing is chosen.
    pub fn contracts(&self) -> &[KernelContract] {
        self.kernels.as_deref().unwrap_or_default()
    }
}
