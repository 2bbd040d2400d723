//! Operations with all details: values, weights, kernels, KV layer, cost.

use crate::build::builder::{Builder, ViewInput};
use crate::build::fold::{DrawnLayers, list};
use crate::build::labels::{epilogue_lines, family, kv_layer_word, path_word, port, prologue_lines};
use crate::data::{DrawingOperation, FormatInfo, KvAccess, OperationCost, OperationWeight, WeightInfo};
use latent_graph::ir::{Epilogue, Ir, StepWorkload};
use latent_graph::passes::{measured_product, required_kernels};
use latent_types::TensorType;

/// Operation `at` of a run of layers, in its first layer.
pub(crate) fn operation(
    builder: &mut Builder<'_>,
    input: &ViewInput<'_>,
    run: &DrawnLayers,
    at: usize,
    first_phase: usize,
) -> DrawingOperation {
    let ir = input.ir;
    let n = run.nodes[0][at];
    let node = &ir.nodes[n];
    let adds = matches!(node.epilogue, Epilogue::AddTo(_));
    // The last input of an addition is the residual, which the epilogue's line shows.
    let read = &node.inputs[..node.inputs.len() - usize::from(adds)];
    let mut kernels = Vec::new();
    if let Some(bucket) = input.bucket_of(node) {
        // Kernels that read a weight are bound by `weight_use`, once per format.
        let free = required_kernels(ir, node).into_iter().filter(|(_, ty)| ty.is_none());
        kernels = free.filter_map(|request| builder.binding(request, bucket, None)).collect();
    }
    let weights = (0..node.weights.len()).map(|w| weight_use(builder, input, run, at, w)).collect();
    let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
    let word = node.op.word();
    DrawingOperation {
        op: word,
        title: if slots.is_empty() { word.to_owned() } else { format!("{word} {}", slots.join(" + ")) },
        family: family(node),
        line: ir.line(node),
        phase: input.phases.map(|phases| phases[n] - first_phase),
        path: path_word(node.path),
        taken: input.step.is_none_or(|step| node.path.meets(step.path)),
        when: Vec::new(),
        inputs: read.iter().map(|id| port(ir, *id)).collect(),
        outputs: node.outputs.iter().map(|id| port(ir, *id)).collect(),
        prologue: prologue_lines(ir, node),
        epilogue: epilogue_lines(node),
        weights,
        kernels,
        kv_layer: node.kv_layer.map(|id| KvAccess {
            kind: kv_layer_word(ir.kv_layers[id.0].kind),
            // Stores have no outputs. Recurrent operations have outputs and write too; `recurrent`
            // marks them.
            writes: node.outputs.is_empty(),
            recurrent: ir.kv_layers[id.0].state.is_some(),
            width: ir.kv_layers[id.0].width,
            row_bytes: ir.kv_layers[id.0].bytes(builder.options.bind.cache),
        }),
        run: input.bucket.and_then(|bucket| builder.runs.of(bucket, ir, node)),
        cost: input.step.map(|step| cost(ir, run, at, step)),
    }
}

/// Weight `w` of operation `at`, with the formats in which the layers of the run store it.
fn weight_use(
    builder: &mut Builder<'_>,
    input: &ViewInput<'_>,
    run: &DrawnLayers,
    at: usize,
    w: usize,
) -> OperationWeight {
    let ir = input.ir;
    // Mixed quantizations such as Q4_K_M store one slot in different formats by layer.
    let mut formats: Vec<(TensorType, Vec<usize>, usize)> = Vec::new();
    for nodes in &run.nodes {
        let node = &ir.nodes[nodes[at]];
        let weight = ir.weight(node.weights[w].1);
        let layer = node.layer.into_iter();
        match formats.iter_mut().find(|(ty, ..)| *ty == weight.ty) {
            Some((_, layers, _)) => layers.extend(layer),
            None => formats.push((weight.ty, layer.collect(), weight.bytes())),
        }
    }
    let first = &ir.nodes[run.nodes[0][at]];
    let weight = ir.weight(first.weights[w].1);
    // The name in the file, also for halves that are derived from a `kv_b`.
    let mut tensor = weight.stored().parts[0].tensor.clone();
    if let Some(layer) = weight.layer {
        // One name stands for all layers of the run, and below for all experts.
        tensor = tensor.replacen(&format!(".{layer}."), ".{layer}.", 1);
    }
    if weight.parts.len() > 1 {
        tensor = tensor.replacen("experts.0.", "experts.{expert}.", 1);
    }
    let weight_info = WeightInfo {
        slot: weight.slot.clone(),
        tensor,
        shape: weight.shape.clone(),
        formats: formats
            .iter()
            .map(|(ty, layers, bytes)| FormatInfo {
                format: ty.name(),
                layers: list(layers),
                count: layers.len().max(1),
                bytes: *bytes,
            })
            .collect(),
    };
    let index = builder.intern_weight(weight_info);
    let mut kernels = Vec::new();
    if let Some(bucket) = input.bucket_of(first) {
        for (ty, ..) in &formats {
            let request = required_kernels(ir, first).into_iter().filter(|(_, ty)| ty.is_some()).nth(w);
            // The request is for the first layer's format. Each format of the run gets its own
            // kernel.
            kernels.extend(request.and_then(|(op, _)| {
                let measured = measured_product(ir, (first, w), builder.target, op, bucket);
                builder.binding((op, Some(*ty)), bucket, measured)
            }));
        }
    }
    OperationWeight { weight: index, kernels }
}

/// The mean cost over the layers of a run. Cost is linear in the number of cached rows, so two
/// samples determine it.
fn cost(ir: &Ir, run: &DrawnLayers, at: usize, step: StepWorkload) -> OperationCost {
    // Any value gives the same slope, because costs are exact in f64.
    const FAR: usize = 1024;
    let mut sum = OperationCost::default();
    for nodes in &run.nodes {
        let node = &ir.nodes[nodes[at]];
        // With the node's own path: the drawing shows both paths, whichever one the step takes.
        let near = node.cost(ir, StepWorkload { past_len: 0, path: node.path, ..step });
        let far = node.cost(ir, StepWorkload { past_len: FAR, path: node.path, ..step });
        sum.weight_bytes += near.weight_bytes;
        sum.cache_bytes += near.cache_bytes;
        sum.cache_bytes_per_cached += (far.cache_bytes - near.cache_bytes) / FAR as f64;
        sum.flops += near.flops;
        sum.flops_per_cached += (far.flops - near.flops) / FAR as f64;
    }
    let n = run.nodes.len() as f64;
    OperationCost {
        weight_bytes: sum.weight_bytes / n,
        cache_bytes: sum.cache_bytes / n,
        cache_bytes_per_cached: sum.cache_bytes_per_cached / n,
        flops: sum.flops / n,
        flops_per_cached: sum.flops_per_cached / n,
    }
}
