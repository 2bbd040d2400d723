//! Bound kernels against what their nodes ask for.

use super::{Bound, Code, Findings};
use crate::ir::BoundKernel;
use crate::passes::{RowClass, asked, class_bound_for};
use crate::plan::Plan;
use base::{OpKind, TensorType};

pub(super) fn check(plan: &Plan, bound: Bound<'_>, found: &mut Findings<'_>) {
    let ir = &plan.ir;
    for (n, node) in ir.nodes.iter().enumerate() {
        let asked = asked(ir, node);
        if asked.len() != node.kernels.len() {
            let problem = format!("it has {} kernels, expected {}", node.kernels.len(), asked.len());
            found.at(Code::A70, ir, n, None, problem);
        }
        let class = class_bound_for(&node.op, plan.class);
        for (i, (kernel, asked)) in node.kernels.iter().zip(asked).enumerate() {
            let slot = node.weights.get(i).map(|(slot, _)| slot);
            // what calls of few rows have beside it must do for one
            let few = kernel.few.iter().map(|few| (&**few, RowClass::One));
            for (kernel, class) in std::iter::once((kernel, class)).chain(few) {
                for (code, problem) in problems(kernel, asked, class, bound) {
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
    class: RowClass,
    bound: Bound<'_>,
) -> Vec<(Code, String)> {
    let Some(contract) = bound.table.get(kernel.index).filter(|k| k.name == kernel.name) else {
        let problem = format!("kernel {} is not number {} of the table", kernel.name, kernel.index);
        return vec![(Code::A71, problem)];
    };
    let mut problems = Vec::new();
    let name = contract.name;
    if contract.op != op || contract.weight.is_some_and(|weight| Some(weight) != ty) {
        let format = ty.map_or_else(String::new, |ty| format!(" of {ty}"));
        problems.push((Code::A72, format!("{name} does not do {}{format}", op.name())));
    }
    if kernel.activation != contract.activation.name() {
        let (reads, says) = (contract.activation.name(), &kernel.activation);
        problems.push((Code::A72, format!("{name} reads {reads} input, the plan says {says}")));
    }
    if contract.tier > bound.options.tier {
        let (needs, limit) = (contract.tier, bound.options.tier);
        problems.push((Code::A73, format!("{name} needs {needs}, the limit is {limit}")));
    }
    if contract.least > class.least_rows() {
        let (least, rows) = (contract.least, class.least_rows());
        problems.push((Code::A73, format!("{name} is for {least} rows and more, there may be {rows}")));
    }
    if contract.cache.is_some_and(|cache| cache != bound.options.cache) {
        problems.push((Code::A47, format!("{name} is for another cache than {}", bound.options.cache)));
    }
    problems
}
