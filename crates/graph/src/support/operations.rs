//! The operations of a step, each with the kernels that implement it.

use super::machine::{KnownTensors, Machine};
use super::missing::{MissingItem, MissingKind};
use crate::circuit::Circuit;
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{Ir, ModelSpan, Node};
use crate::passes::{self, BatchBucket, PassInput, choose, required_kernels};
use latent_types::{OpKind, TensorType, Tier};
use serde::Serialize;

/// An operation on one format of weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationKernels {
    /// The operation by its kernel name.
    pub operation: String,
    /// The format of its weights; `None` without weights.
    pub format: Option<String>,
    /// Weight slots of that format that it reads.
    pub slots: Vec<String>,
    /// Number of nodes of a decode step that run it.
    pub nodes: usize,
    /// Every kernel of this machine for it, highest ISA first.
    pub available: Vec<KernelChoice>,
    /// The selected kernel; `None` if none matches.
    pub binds: Option<KernelChoice>,
    /// Whether it runs in portable code although other formats have faster kernels on this machine.
    pub portable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelChoice {
    /// Name of the kernel.
    pub kernel: String,
    /// The instruction set that it uses.
    pub tier: String,
    /// The type in which it reads its input.
    pub input: String,
}

/// All operations of decode and prefill steps, in every stage.
pub(super) fn list(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &KnownTensors<'_>,
    machine: Machine<'_>,
    missing: &mut Vec<MissingItem>,
) -> Result<Vec<OperationKernels>, GraphError> {
    let mut list: Vec<(OpKind, Option<TensorType>, OperationKernels)> = Vec::new();
    // Kernels without a minimum of rows bind in decode; prefill allows all of them.
    for bucket in [BatchBucket::Decode, BatchBucket::Prefill] {
        for (_, span) in ModelSpan::of_stages(circuit, config, false)? {
            let ir = lowered(circuit, config, &span, tensors, machine, bucket)?;
            for node in &ir.nodes {
                note(&ir, node, bucket, &mut list);
            }
        }
    }
    list.sort_by_key(|(op, ty, _)| (*op, *ty));
    for (op, ty, operation) in &mut list {
        bind(*op, *ty, operation, machine, missing);
    }
    Ok(list.into_iter().map(|(_, _, operation)| operation).collect())
}

/// The IR as `select_kernels` gets it.
fn lowered(
    circuit: &Circuit,
    config: &ModelConfig,
    span: &ModelSpan,
    tensors: &KnownTensors<'_>,
    machine: Machine<'_>,
    bucket: BatchBucket,
) -> Result<Ir, GraphError> {
    let ir = Ir::build_with(circuit, config, span, tensors)?;
    let input = PassInput {
        attention: &config.attention,
        part: None,
        target: machine.target,
        mla: machine.mla,
        form: machine.form,
        bind: &machine.bind,
        bucket,
    };
    passes::lowered(ir, &input)
}

fn note(
    ir: &Ir,
    node: &Node,
    bucket: BatchBucket,
    list: &mut Vec<(OpKind, Option<TensorType>, OperationKernels)>,
) {
    for (i, (op, ty)) in required_kernels(ir, node).into_iter().enumerate() {
        let at = list.iter().position(|(o, t, _)| (*o, *t) == (op, ty)).unwrap_or_else(|| {
            let operation = OperationKernels {
                operation: op.name().to_owned(),
                format: ty.map(|ty| ty.name().to_owned()),
                slots: Vec::new(),
                nodes: 0,
                available: Vec::new(),
                binds: None,
                portable: false,
            };
            list.push((op, ty, operation));
            list.len() - 1
        });
        let operation = &mut list[at].2;
        // Counted once; prefill only adds operations that decode lacks.
        operation.nodes += usize::from(bucket == BatchBucket::Decode);
        if let Some((slot, _)) = node.weights.get(i).filter(|_| ty.is_some())
            && !operation.slots.contains(slot)
        {
            operation.slots.push(slot.clone());
        }
    }
}

fn bind(
    op: OpKind,
    ty: Option<TensorType>,
    operation: &mut OperationKernels,
    machine: Machine<'_>,
    missing: &mut Vec<MissingItem>,
) {
    let (table, options) = (machine.target.contracts(), &machine.bind);
    let choice = |i: usize| {
        let kernel = &table[i];
        let tier = kernel.tier.name().to_owned();
        KernelChoice { kernel: kernel.name.to_owned(), tier, input: kernel.activation.name().to_owned() }
    };
    let mut fits: Vec<usize> = (0..table.len())
        .filter(|i| {
            let k = &table[*i];
            k.op == op
                // A kernel without a format decodes any.
                && (k.weight.is_none() || k.weight == ty)
                && k.tier <= options.tier
                && k.cache.is_none_or(|cache| cache == options.cache)
        })
        .collect();
    fits.sort_by_key(|i| std::cmp::Reverse((table[*i].tier, table[*i].weight.is_some())));
    operation.available = fits.into_iter().map(choice).collect();
    if let Some(ty) = ty.filter(|ty| !latent_quant::can_decode(*ty)) {
        let problem = format!("Latent cannot decode it; slots {} are stored so", operation.slots.join(", "));
        missing.push(MissingItem::new(MissingKind::Format, ty.name(), problem));
        return;
    }
    match choose(table, (op, ty), options, BatchBucket::Decode, None) {
        Ok(kernel) => {
            operation.binds = Some(choice(kernel.index));
            // Row-wise operations have one entry in the table, which selects instructions itself at
            // run time.
            let faster = table.iter().any(|k| k.op == op && k.tier > Tier::Portable);
            let plain = table[kernel.index].tier == Tier::Portable;
            operation.portable = plain && faster && options.tier > Tier::Portable;
        }
        Err(error) => {
            let what = ty.map_or_else(|| op.name().to_owned(), |ty| format!("{} of {ty}", op.name()));
            missing.push(MissingItem::new(MissingKind::Kernel, what, error.to_string()));
        }
    }
}
