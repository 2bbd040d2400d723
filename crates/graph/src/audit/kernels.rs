//! Bound kernels against what their nodes ask for.

use super::{Bound, Code, Findings};
use crate::ir::BoundKernel;
use crate::passes::{BatchBucket, asked, class_bound_for};
use crate::plan::Plan;
use latent_types::{OpKind, TensorType};

pub(super) fn check(plan: &Plan, bound: Bound<'_>, found: &mut Findings<'_>) {
    let ir = &plan.ir;
    for (n, node) in ir.nodes.iter().enumerate() {
        let asked = if bound.target.kernels.is_some() { asked(ir, node) } else { Vec::new() };
        if asked.len() != node.kernels.len() {
            let problem = format!("it has {} kernels, expected {}", node.kernels.len(), asked.len());
            found.at(Code::A70, ir, n, None, problem);
        }
        let bucket = class_bound_for(&node.op, plan.bucket);
        for (i, (kernel, asked)) in node.kernels.iter().zip(asked).enumerate() {
            let slot = node.weights.get(i).map(|(slot, _)| slot);
            // what calls of few rows have beside it must do for one
            let few = kernel.few.iter().map(|few| (&**few, BatchBucket::Decode));
            for (kernel, bucket) in std::iter::once((kernel, bucket)).chain(few) {
                for (code, problem) in problems(kernel, asked, bucket, bound) {
                    found.at(code, ir, n, slot.cloned(), problem);
                }
            }
        }
    }
}

/// What is wrong with a bound kernel.
fn problems(
    kernel: &BoundKernel,
    (op, ty): (OpKind, Option<TensorType>),
    bucket: BatchBucket,
    bound: Bound<'_>,
) -> Vec<(Code, String)> {
    let Some(config) = bound.target.contracts().get(kernel.index).filter(|k| k.name == kernel.name) else {
        let problem = format!("kernel {} is not number {} of the table", kernel.name, kernel.index);
        return vec![(Code::A71, problem)];
    };
    let mut problems = Vec::new();
    let name = config.name;
    if config.op != op || config.weight.is_some_and(|weight| Some(weight) != ty) {
        let format = ty.map_or_else(String::new, |ty| format!(" of {ty}"));
        problems.push((Code::A72, format!("{name} does not do {}{format}", op.name())));
    }
    if kernel.activation != config.activation.name() {
        let (reads, says) = (config.activation.name(), &kernel.activation);
        problems.push((Code::A72, format!("{name} reads {reads} input, the plan says {says}")));
    }
    if config.tier > bound.options.tier {
        let (needs, limit) = (config.tier, bound.options.tier);
        problems.push((Code::A73, format!("{name} needs {needs}, the limit is {limit}")));
    }
    if config.least > bucket.least_rows() {
        let (least, rows) = (config.least, bucket.least_rows());
        problems.push((Code::A73, format!("{name} is for {least} rows and more, there may be {rows}")));
    }
    if config.cache.is_some_and(|cache| cache != bound.options.cache) {
        problems.push((Code::A47, format!("{name} is for another cache than {}", bound.options.cache)));
    }
    problems
}
