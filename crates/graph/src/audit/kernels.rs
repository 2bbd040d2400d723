//! Bound kernels against what their nodes ask for.

use super::{Bound, Code, Findings};
use crate::ir::Ir;
use crate::passes::asked;

pub(super) fn check(ir: &Ir, bound: Bound<'_>, found: &mut Findings<'_>) {
    for (n, node) in ir.nodes.iter().enumerate() {
        let asked = asked(ir, node);
        if asked.len() != node.kernels.len() {
            let problem = format!("it has {} kernels, expected {}", node.kernels.len(), asked.len());
            found.at(Code::A70, ir, n, None, problem);
        }
        for (i, (kernel, (op, ty))) in node.kernels.iter().zip(asked).enumerate() {
            let slot = node.weights.get(i).map(|(slot, _)| slot.clone());
            let Some(contract) = bound.table.get(kernel.index).filter(|k| k.name == kernel.name) else {
                let problem = format!("kernel {} is not number {} of the table", kernel.name, kernel.index);
                found.at(Code::A71, ir, n, slot, problem);
                continue;
            };
            if contract.op != op || contract.weight.is_some_and(|weight| Some(weight) != ty) {
                let format = ty.map_or_else(String::new, |ty| format!(" of {ty}"));
                let problem = format!("{} does not do {}{format}", contract.name, op.name());
                found.at(Code::A72, ir, n, slot.clone(), problem);
            }
            if kernel.activation != contract.activation.name() {
                let problem = format!(
                    "{} reads {} input, the plan says {}",
                    contract.name,
                    contract.activation.name(),
                    kernel.activation
                );
                found.at(Code::A72, ir, n, slot.clone(), problem);
            }
            if contract.tier > bound.options.tier {
                let problem =
                    format!("{} needs {}, the limit is {}", contract.name, contract.tier, bound.options.tier);
                found.at(Code::A73, ir, n, slot.clone(), problem);
            }
            if contract.cache.is_some_and(|cache| cache != bound.options.cache) {
                let problem = format!("{} is for another cache than {}", contract.name, bound.options.cache);
                found.at(Code::A47, ir, n, slot, problem);
            }
        }
    }
}
