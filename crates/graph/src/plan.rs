//! The plan: the IR after all passes, scheduled into phases, with kernels selected and buffers
//! placed.

use crate::circuit::TensorIndex;
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{Ir, ModelSpan, NodeCost, StepWorkload};
use crate::passes::{
    Arena, BatchBucket, BindOptions, CacheForm, MlaChoice, PassInput, lifetimes, pipeline, plan_memory,
    schedule,
};
use crate::target::BackendTarget;
use serde::Serialize;

/// The largest `max_batch_tokens` of a plan. It is far above useful sizes, and small enough that no
/// size in a plan overflows 64 bits, whatever a model's dimensions are.
pub const MAX_STEP_ROWS: usize = 1 << 20;

/// What a plan is made for: span, bucket, MLA formulation, cache and kernels.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The part of the model.
    pub span: ModelSpan,
    /// The batch bucket: the number of rows of its steps.
    pub bucket: BatchBucket,
    /// Maximum rows of one step over all buckets, at most [`MAX_STEP_ROWS`].
    pub max_batch_tokens: usize,
    /// The attention paths of MLA that it contains.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// Precision, ISA limit and cache type.
    pub bind: BindOptions,
}

impl PlanOptions {
    /// The input of passes for these options.
    pub fn pass_input<'a>(&'a self, config: &'a ModelConfig, target: &'a BackendTarget) -> PassInput<'a> {
        PassInput {
            attention: &config.attention,
            part: config.part.as_deref(),
            target,
            mla: self.mla,
            form: self.form,
            bind: &self.bind,
            bucket: self.bucket,
        }
    }
}

/// Everything that a backend needs to run a span of layers for one batch bucket.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The part of the model.
    pub span: ModelSpan,
    pub bucket: BatchBucket,
    /// Maximum rows of a step, for which its arena is sized.
    pub max_rows: usize,
    /// The operations, values, weights and KV layers.
    pub ir: Ir,
    /// The phase of each node.
    pub phases: Vec<usize>,
    /// Where values are stored.
    pub arena: Arena,
    /// Optional passes that were omitted (`--without`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<&'static str>,
}

impl Plan {
    /// Builds the IR, runs every pass that the target wants, and makes a plan.
    ///
    /// # Errors
    /// A missing tensor or one of a wrong shape, an operation without a kernel, or too many rows
    /// per step.
    pub fn make(
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        options: &PlanOptions,
    ) -> Result<Plan, GraphError> {
        let ir = Ir::build(config, &options.span, tensors)?;
        Plan::from_ir(ir, config, target, options)
    }

    /// Like [`make`](Self::make), from an IR that is already built.
    pub fn from_ir(
        ir: Ir,
        config: &ModelConfig,
        target: &BackendTarget,
        options: &PlanOptions,
    ) -> Result<Plan, GraphError> {
        // Before any size is computed: rows come from the command line, and sizes are their
        // multiples.
        if options.max_batch_tokens > MAX_STEP_ROWS {
            return Err(GraphError::Rows { rows: options.max_batch_tokens, most: MAX_STEP_ROWS });
        }
        let cache = options.bind.cache;
        if !options.form.stores(cache) {
            return Err(GraphError::CacheType { cache });
        }
        let mut ir = ir;
        for pass in pipeline() {
            ir = pass.run(ir, &options.pass_input(config, target))?;
        }
        let phases = match target.fusion.phases && !target.without.contains(&"schedule") {
            true => schedule(&ir, options.bucket),
            // One phase per node, for backends that run nodes in order and for measuring what
            // phases are worth.
            false => (0..ir.nodes.len()).collect(),
        };
        let max_rows = options.bucket.max_rows(options.max_batch_tokens);
        // After scheduling: lifetimes are in phases, so fewer phases mean more values alive at
        // once.
        let arena = plan_memory(&ir, &phases, max_rows);
        let (span, bucket, without) = (options.span.clone(), options.bucket, target.without.clone());
        Ok(Plan { span, bucket, max_rows, ir, phases, arena, without })
    }

    /// Number of phases, which is the number of barriers per step.
    pub fn phase_count(&self) -> usize {
        self.phases.iter().max().map_or(0, |last| last + 1)
    }

    /// Bytes of the largest value in a step of `max_rows` rows.
    pub fn largest_value(&self) -> usize {
        let lives = lifetimes(&self.ir, &self.phases, self.max_rows);
        lives.iter().map(|life| life.bytes).max().unwrap_or(0)
    }

    /// Memory traffic and arithmetic of all nodes in `step`.
    pub fn cost(&self, step: StepWorkload) -> NodeCost {
        let mut total = NodeCost::default();
        for node in &self.ir.nodes {
            total += node.cost(&self.ir, step);
        }
        total
    }

    /// One line per node, grouped by phase.
    pub fn to_text(&self) -> String {
        let rows = match (self.bucket.min_rows(), self.max_rows) {
            (_, 1) => "1 row".to_owned(),
            (min, max) => format!("{min} to {max} rows"),
        };
        let without = match &self.without[..] {
            [] => String::new(),
            passes => format!(", without {}", passes.join(", ")),
        };
        let head = format!(
            "plan for {} ({rows}), {} phases, arena {} bytes{without}\n",
            self.bucket.purpose(),
            self.phase_count(),
            self.arena.bytes
        );
        head + &self.ir.to_text(Some(&self.phases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Ir;
    use crate::passes::Precision;
    use latent_types::{CacheType, Tier};

    #[test]
    fn a_step_of_too_many_rows_is_refused() {
        let config = crate::passes::snapshots::config();
        for rows in [usize::MAX, usize::MAX / 2 + 1, MAX_STEP_ROWS + 1] {
            let options = PlanOptions {
                span: ModelSpan::backbone(&config),
                bucket: BatchBucket::Prefill,
                max_batch_tokens: rows,
                mla: MlaChoice::Auto,
                form: CacheForm::Latent,
                bind: BindOptions {
                    precision: Precision::Exact,
                    tier: Tier::Portable,
                    cache: CacheType::F32,
                },
            };
            let error =
                Plan::from_ir(Ir::default(), &config, &BackendTarget::unfused("none"), &options).unwrap_err();
            assert!(
                matches!(error, GraphError::Rows { rows: found, most: MAX_STEP_ROWS } if found == rows),
                "{error}"
            );
        }
    }

    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
