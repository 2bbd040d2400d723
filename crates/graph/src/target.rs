//! The target of a plan: the kernels of a backend, and the rewrites that it benefits from.

use crate::kernel_timings::KernelTimings;
use latent_types::KernelContract;
use std::sync::Arc;

/// A backend, as the passes see it. This crate knows no threads, registers or GPUs; everything that
/// passes need of a backend is here.
#[derive(Clone, Debug)]
pub struct BackendTarget {
    /// The backend's name in `--device`. A packed file records it too, because weight layouts
    /// differ by backend.
    pub name: &'static str,
    /// The backend's kernel contracts, from which `select_kernels` chooses; plans refer to them by
    /// index. `None` for a backend that computes every operation from its definition.
    pub kernels: Option<Vec<KernelContract>>,
    /// The rewrites that make this backend faster.
    pub fusion: Fusion,
    /// How attention divides the KV range of a row into splits that are computed concurrently;
    /// `None` without splits.
    pub kv_splits: Option<KvSplits>,
    /// Whether it supports the indexer of sparse attention, and attention to selected tokens.
    pub sparse_attention: bool,
    /// Whether naive attention can mask tokens that the indexer did not select.
    pub masks_tokens: bool,
    /// Whether it expands latents, joins keys and stores both as separate operations instead of
    /// one.
    pub expanded_stores: bool,
    /// Optional passes to omit. Users name them to measure what a pass is worth.
    pub without: Vec<&'static str>,
    /// Measured times of its kernels, which decide between instruction sets. Without them the
    /// highest one is chosen.
    pub tuned: Option<Arc<KernelTimings>>,
    /// Whether it supports LoRA adapters.
    pub adapters: bool,
    /// Number of workers (CPU threads) that share the operations of a phase.
    pub workers: usize,
}

/// KV splits (flash decoding): in steps with few rows, workers share the KV range of each row. The
/// node that reads the partial results combines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSplits {
    /// Maximum splits per row.
    pub most: usize,
    /// Heads of a row that a kernel computes in one pass, at little more than the cost of one.
    pub head_group: usize,
    /// Splits are used while rows × groups of heads are fewer than this per worker. More rows keep
    /// all workers busy without splits.
    pub groups_per_worker: usize,
    /// Rows of one sequence that read a split in one pass. A step with at most this many rows uses
    /// splits, regardless of the number of heads.
    pub rows_together: usize,
}

impl KvSplits {
    /// Maximum rows of a step whose splits are shared by `workers`, if some rows belong to one
    /// sequence.
    pub fn rows(&self, heads: usize, workers: usize) -> usize {
        self.rows_apart(heads, workers).max(self.rows_together)
    }

    /// Like [`rows`](Self::rows), if every row belongs to a different sequence.
    pub fn rows_apart(&self, heads: usize, workers: usize) -> usize {
        // The largest r with r × groups < groups_per_worker × workers.
        (self.groups_per_worker * workers).saturating_sub(1) / heads.div_ceil(self.head_group).max(1)
    }
}

/// The optional passes that run. Lowering MLA is never optional: no kernel computes
/// `mla_attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Matmuls with the same input become one operation.
    pub projections: bool,
    /// The experts of a layer become two grouped matmuls instead of one operation per layer.
    pub experts: bool,
    /// RMSNorm moves into each operation that reads its result. It pays if recomputing the norm is
    /// cheaper than another phase.
    pub norms: bool,
    /// Norms move into matmuls too, where every worker repeats them; otherwise only into operations
    /// that read each row once.
    pub norms_in_products: bool,
    /// RoPE moves into the operation that reads the rotated part.
    pub ropes: bool,
    /// Activation functions and residual additions move into the matmul before them.
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
    /// A backend with these kernels that benefits from every rewrite.
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

    /// A backend without kernel contracts, which runs the operations as the circuit states them.
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

    /// The contracts to choose from; empty if the backend has none.
    pub fn contracts(&self) -> &[KernelContract] {
        self.kernels.as_deref().unwrap_or_default()
    }
}
