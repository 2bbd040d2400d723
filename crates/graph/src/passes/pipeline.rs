//! The pipeline: the passes by name, in the order in which they make a plan.

use super::{
    BatchBucket, BindOptions, CacheForm, MlaChoice, Precision, expand_stores, fold_epilogues, fold_norms,
    fold_ropes, fuse_projections, group_experts, insert_collectives, lower_mla, select_kernels,
    share_kv_splits, split_kv_b,
};
use crate::config::{AttentionShape, RankPart};
use crate::error::GraphError;
use crate::ir::Ir;
use crate::target::BackendTarget;

/// The input of passes in addition to the IR.
#[derive(Clone, Copy)]
pub struct PassInput<'a> {
    /// The sizes of the attention.
    pub attention: &'a AttentionShape,
    /// This rank's part of the model, if several ranks share it.
    pub part: Option<&'a RankPart>,
    /// The backend: its kernels, and the passes that pay on it.
    pub target: &'a BackendTarget,
    /// The attention paths of MLA.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// Precision, ISA limit and cache type.
    pub bind: &'a BindOptions,
    /// The batch bucket of the plan.
    pub bucket: BatchBucket,
}

/// A pass with its name.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Its name, which is the function's.
    pub name: &'static str,
    wanted: fn(&BackendTarget) -> bool,
    run: fn(Ir, &PassInput<'_>) -> Result<Ir, GraphError>,
}

impl Pass {
    /// Whether plans for this target go through the pass.
    pub fn is_wanted(&self, target: &BackendTarget) -> bool {
        (self.wanted)(target) && !target.without.contains(&self.name)
    }

    /// Runs the pass if the target wants it; otherwise returns the IR unchanged.
    ///
    /// # Errors
    /// An operation without a kernel, or an IR that the pass does not expect.
    pub fn run(&self, ir: Ir, input: &PassInput<'_>) -> Result<Ir, GraphError> {
        if self.is_wanted(input.target) { (self.run)(ir, input) } else { Ok(ir) }
    }
}

// The order matters. Collectives come first, because they match sums and `expert_mlp` nodes, which
// later passes replace. `lower_mla` produces the attention nodes that the others rewrite. Norms
// fold into fused projections. Sums fold into matmuls that have their activation already, and
// `select_kernels` needs the final nodes.
const PIPELINE: &[Pass] = &[
    Pass {
        name: "insert_collectives",
        wanted: |_| true,
        run: |ir, input| match input.part {
            // On one host there is nothing to exchange.
            Some(part) => Ok(insert_collectives(ir, part)),
            None => Ok(ir),
        },
    },
    Pass {
        name: "lower_mla",
        wanted: |_| true,
        run: |ir, input| lower_mla(ir, input.mla, input.form, input.attention),
    },
    Pass {
        name: "expand_stores",
        wanted: |target| target.expanded_stores,
        run: |ir, input| Ok(expand_stores(ir, input.attention)),
    },
    Pass {
        name: "split_kv_b",
        wanted: |target| target.kernels.is_some(),
        run: |ir, input| match input.bind.precision {
            Precision::Default => Ok(split_kv_b(ir, input.attention)),
            // Exact precision reads weights as stored, so it derives none.
            Precision::Exact => Ok(ir),
        },
    },
    Pass {
        name: "fuse_projections",
        wanted: |target| target.fusion.projections,
        run: |ir, _| Ok(fuse_projections(ir)),
    },
    Pass {
        name: "group_experts",
        wanted: |target| target.fusion.experts,
        run: |ir, _| Ok(group_experts(ir)),
    },
    Pass {
        name: "fold_norms",
        wanted: |target| target.fusion.norms,
        run: |ir, input| {
            // The prefill bucket stands for "not into matmuls", whatever the plan's own bucket.
            let products = input.target.fusion.norms_in_products;
            Ok(fold_norms(ir, if products { input.bucket } else { BatchBucket::Prefill }))
        },
    },
    Pass { name: "fold_ropes", wanted: |target| target.fusion.ropes, run: |ir, _| Ok(fold_ropes(ir)) },
    Pass {
        name: "fold_epilogues",
        wanted: |target| target.fusion.epilogues,
        run: |ir, _| Ok(fold_epilogues(ir)),
    },
    Pass {
        name: "share_kv_splits",
        wanted: |target| target.kv_splits.is_some(),
        run: |ir, input| match input.target.kv_splits {
            Some(splits) => Ok(share_kv_splits(ir, splits, input.target.workers)),
            None => Ok(ir),
        },
    },
    Pass {
        name: "select_kernels",
        wanted: |target| target.kernels.is_some(),
        run: |ir, input| select_kernels(ir, input.target, input.bind, input.bucket),
    },
];

/// Passes that plans can omit. They change speed, and results by rounding at most. Without
/// `schedule`, each operation has its own phase.
// Not `group_experts`: tables of kernels have none for `expert_mlp`.
pub const OPTIONAL: [&str; 7] = [
    "split_kv_b",
    "fuse_projections",
    "fold_norms",
    "fold_ropes",
    "fold_epilogues",
    "share_kv_splits",
    "schedule",
];

/// The optional pass of this name.
///
/// # Errors
/// For a name that no optional pass has, with the accepted names.
pub fn optional(name: &str) -> Result<&'static str, String> {
    let found = OPTIONAL.into_iter().find(|pass| *pass == name);
    found.ok_or_else(|| {
        // Tells a required pass from a misspelled name.
        let problem = match PIPELINE.iter().any(|pass| pass.name == name) {
            true => format!("{name} is required for every plan"),
            false => format!("unknown pass {name:?}"),
        };
        format!("{problem}; the optional passes are {}", OPTIONAL.join(", "))
    })
}

/// Every pass from the IR of a circuit to the IR of a plan, in order.
pub fn pipeline() -> &'static [Pass] {
    PIPELINE
}

/// The IR after the pass of this name, starting from the IR of a circuit.
pub fn after(name: &str, mut ir: Ir, input: &PassInput<'_>) -> Result<Ir, GraphError> {
    let Some(last) = PIPELINE.iter().position(|pass| pass.name == name) else {
        let known = PIPELINE.iter().map(|pass| pass.name.to_owned()).collect();
        return Err(GraphError::NoPass { name: name.to_owned(), known });
    };
    for pass in &PIPELINE[..=last] {
        ir = pass.run(ir, input)?;
    }
    Ok(ir)
}

/// The IR for which kernels are selected: after every pass but the last.
pub(crate) fn lowered(mut ir: Ir, input: &PassInput<'_>) -> Result<Ir, GraphError> {
    // A test checks that the last pass is `select_kernels`.
    for pass in &PIPELINE[..PIPELINE.len() - 1] {
        ir = pass.run(ir, input)?;
    }
    Ok(ir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::{DeclaredTensors, TensorNaming};
    use crate::ir::ModelSpan;
    use crate::passes::{Precision, snapshots};
    use latent_types::{CacheType, TensorType, Tier};

    fn built() -> Ir {
        let config = snapshots::config();
        let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
        Ir::build(&config, &ModelSpan::backbone(&config), &tensors).unwrap()
    }

    fn input<T>(use_it: impl FnOnce(&PassInput<'_>) -> T) -> T {
        let bind = BindOptions { precision: Precision::Default, tier: Tier::Portable, cache: CacheType::F16 };
        let (attention, target) = (snapshots::config().attention, BackendTarget::new("test", Vec::new()));
        use_it(&PassInput {
            attention: &attention,
            part: None,
            target: &target,
            mla: MlaChoice::Auto,
            form: CacheForm::Latent,
            bind: &bind,
            bucket: BatchBucket::Decode,
        })
    }

    #[test]
    fn the_ir_after_a_pass_is_what_the_pass_makes() {
        let fused = input(|input| after("fuse_projections", built(), input)).unwrap();
        let attention = snapshots::config().attention;
        let lowered = lower_mla(built(), MlaChoice::Auto, CacheForm::Latent, &attention).unwrap();
        assert_ne!(fused.to_text(None), lowered.to_text(None));
        assert_eq!(fused.to_text(None), fuse_projections(lowered).to_text(None));
    }

    #[test]
    fn an_unknown_pass_is_an_error_that_lists_the_passes() {
        let error = input(|input| after("fuse", built(), input)).unwrap_err().to_string();
        assert!(error.contains("\"fuse\""), "{error}");
        for pass in pipeline() {
            assert!(error.contains(pass.name), "{error}");
        }
    }

    #[test]
    fn a_target_that_wants_no_fusion_gets_the_lowered_circuit() {
        let (target, attention) = (BackendTarget::unfused("test"), snapshots::config().attention);
        let lowered = lower_mla(built(), MlaChoice::Auto, CacheForm::Latent, &attention).unwrap();
        let whole = input(|input| after("select_kernels", built(), &PassInput { target: &target, ..*input }));
        assert_eq!(whole.unwrap().to_text(None), lowered.to_text(None));
    }

    #[test]
    fn the_last_pass_selects_kernels() {
        assert_eq!(pipeline().last().map(|pass| pass.name), Some("select_kernels"));
    }
}
