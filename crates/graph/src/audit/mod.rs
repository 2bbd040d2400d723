//! The audit: rules for circuits and everything lowered from them. It does no I/O and no arithmetic
//! on weights.
//!
//! [`circuit`] audits a circuit under one config, [`ir`] an IR, [`plan`] a plan, [`plans`] the
//! plans of some stages, and [`session`] all plans of a session together with the file's tensors.
//! Each visits every node once, so the engine can run [`session`] at every load. A [`Finding`] has
//! the rule's [`Code`], the place, and a hint; `docs/audit.md` lists the rules.
//!
//! The audit does not use results of passes: it derives lifetimes, orders and widths again, so that
//! it does not inherit their mistakes.

mod buckets;
mod cache;
mod circuits;
mod edges;
mod findings;
mod kernels;
mod memory;
mod mla;
mod phases;
mod ranks;
mod rules;
mod shapes;
mod tensors;
#[cfg(test)]
mod tests;
mod trace;

pub use findings::{BindContext, Finding};
pub use rules::{AuditRule, Code};
pub use tensors::{UnusedTensor, unused};

use crate::circuit::{Circuit, TensorIndex};
use crate::config::ModelConfig;
use crate::ir::{Ir, ModelSpan};
use crate::plan::Plan;
use crate::stage::Stage;
use findings::Findings;
use trace::ResolvedIr;

/// Audits a circuit for the layers of `config`.
pub fn circuit(circuit: &Circuit, config: &ModelConfig) -> Vec<Finding> {
    let mut found = Findings::new("circuit");
    circuits::check(circuit, config, &mut found);
    found.list
}

/// Audits an IR of `circuit` over `span`, before, between or after any passes.
pub fn ir(ir: &Ir, circuit: &Circuit, span: &ModelSpan, config: &ModelConfig) -> Vec<Finding> {
    let mut found = Findings::new("ir");
    if let Some(trace) = graph(ir, circuit, span, config, &mut found) {
        // Without phases, the order of the node list is checked instead.
        mla::check(&trace, span, config, None, &mut found);
        cache::check(&trace, circuit, span, config, &mut found);
    }
    found.list
}

/// Audits a plan of `circuit`.
pub fn plan(plan: &Plan, circuit: &Circuit, config: &ModelConfig, bound: BindContext<'_>) -> Vec<Finding> {
    let stage = stage(plan);
    let mut found = Findings::new(&stage);
    if let Some(trace) = graph(&plan.ir, circuit, &plan.span, config, &mut found) {
        // These three compare phases, so they need valid ones.
        if phases::check(&trace, &plan.phases, (plan.bucket, bound.target), &mut found) {
            mla::check(&trace, &plan.span, config, Some(&plan.phases), &mut found);
            cache::check(&trace, circuit, &plan.span, config, &mut found);
            memory::check(&trace, plan, &mut found);
        }
        // Also if phases are broken: these rules do not depend on them.
        kernels::check(plan, bound, &mut found);
        ranks::check(&trace, &plan.span, config, &mut found);
    }
    found.list
}

/// Audits a session: each plan, the plans against one another, and the file's tensors against the
/// weights used.
///
/// `stages` are those of [`Stage::of_model`].
pub fn session(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    stages: &[Stage],
    bound: BindContext<'_>,
) -> Vec<Finding> {
    let mut list = self::circuit(circuit, config);
    let mut found = Findings::new("file");
    // All buckets of a stage use the same weights, so one plan per stage is enough.
    let first = stages.iter().filter_map(|stage| stage.plans.first());
    let irs: Vec<&Ir> = first.map(|plan| &plan.ir).collect();
    tensors::check_file(circuit, config, tensors, &irs, &mut found);
    list.append(&mut found.list);
    list.extend(plans(circuit, config, stages, bound));
    list
}

/// Audits the plans of some stages, and those of each stage against one another.
pub fn plans(
    circuit: &Circuit,
    config: &ModelConfig,
    stages: &[Stage],
    bound: BindContext<'_>,
) -> Vec<Finding> {
    let all = stages.iter().flat_map(|stage| &stage.plans);
    let mut list: Vec<Finding> = all.flat_map(|each| plan(each, circuit, config, bound)).collect();
    let mut found = Findings::new("plans of all buckets");
    buckets::check(stages, bound, &mut found);
    list.append(&mut found.list);
    list
}

/// Checks the rules that need no phases. `None` if the IR is too broken for further checks.
fn graph<'a>(
    ir: &'a Ir,
    circuit: &Circuit,
    span: &ModelSpan,
    config: &ModelConfig,
    found: &mut Findings<'_>,
) -> Option<ResolvedIr<'a>> {
    let trace = ResolvedIr::new(ir, found)?;
    edges::check(&trace, found);
    shapes::check(&trace, config, found);
    tensors::check_ir(ir, circuit, span, config, found);
    Some(trace)
}

/// `plan of the layers, decode`.
fn stage(plan: &Plan) -> String {
    use crate::passes::BatchBucket;
    let part = match (plan.span.mtp, plan.span.head) {
        (false, false) => "layers",
        (false, true) => "head",
        (true, false) => "MTP layer",
        (true, true) => "MTP head",
    };
    let rows = match plan.bucket {
        BatchBucket::Decode => "decode",
        BatchBucket::SmallBatch => "small batch",
        BatchBucket::Prefill => "prefill",
    };
    format!("plan of the {part}, {rows}")
}
