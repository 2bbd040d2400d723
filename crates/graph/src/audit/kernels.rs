//! Rules for bound kernels, against the requirements of their nodes.

use super::findings::{BindContext, Findings};
use super::rules::Code;
use crate::ir::BoundKernel;
use crate::passes::{BatchBucket, binding_bucket, required_kernels};
use crate::plan::Plan;
use latent_types::{OpKind, TensorType};

pub(super) fn check(plan: &Plan, bound: BindContext<'_>, found: &mut Findings<'_>) {
    let ir = &plan.ir;
    for (n, node) in ir.nodes.iter().enumerate() {
        // A target without a table, such as the C writer's, binds no kernels.
        let selects = bound.target.kernels.is_some();
        let required = if selects { required_kernels(ir, node) } else { Vec::new() };
        if required.len() != node.kernels.len() {
            let problem = format!("it has {} kernels, expected {}", node.kernels.len(), required.len());
            found.at(Code::A70, ir, n, None, problem);
        }
        let bucket = binding_bucket(&node.op, plan.bucket);
        for (i, (kernel, required)) in node.kernels.iter().zip(required).enumerate() {
            let slot = node.weights.get(i).map(|(slot, _)| slot);
            // An expert can get a single row, so its small-batch kernel must accept that.
            let small = kernel.small_batch.iter().map(|small| (&**small, BatchBucket::Decode));
            for (kernel, bucket) in std::iter::once((kernel, bucket)).chain(small) {
                for (code, problem) in problems(kernel, required, bucket, bound) {
                    found.at(code, ir, n, slot.cloned(), problem);
                }
            }
        }
    }
}

/// The problems of a bound kernel.
fn problems(
    kernel: &BoundKernel,
    (op, ty): (OpKind, Option<TensorType>),
    bucket: BatchBucket,
    bound: BindContext<'_>,
) -> Vec<(Code, String)> {
    // Backends find the kernel by index; the name proves that the plan and the table belong
    // together.
    let Some(contract) = bound.target.contracts().get(kernel.index).filter(|k| k.name == kernel.name) else {
        let problem = format!("kernel {} is not number {} of the table", kernel.name, kernel.index);
        return vec![(Code::A71, problem)];
    };
    let mut problems = Vec::new();
    let name = contract.name;
    if contract.op != op || contract.weight.is_some_and(|weight| Some(weight) != ty) {
        let format = ty.map_or_else(String::new, |ty| format!(" of {ty}"));
        problems.push((Code::A72, format!("{name} does not implement {}{format}", op.name())));
    }
    if kernel.activation != contract.activation.name() {
        let (reads, says) = (contract.activation.name(), &kernel.activation);
        problems.push((Code::A72, format!("{name} reads {reads} input, but the plan has {says}")));
    }
    if contract.tier > bound.options.tier {
        let (needs, limit) = (contract.tier, bound.options.tier);
        problems.push((Code::A73, format!("{name} needs {needs}, the limit is {limit}")));
    }
    if contract.min_rows > bucket.min_rows() {
        let (min, rows) = (contract.min_rows, bucket.min_rows());
        problems.push((Code::A73, format!("{name} needs at least {min} rows, but a step may have {rows}")));
    }
    if contract.cache.is_some_and(|cache| cache != bound.options.cache) {
        problems.push((Code::A47, format!("{name} does not support a cache of {}", bound.options.cache)));
    }
    problems
}
