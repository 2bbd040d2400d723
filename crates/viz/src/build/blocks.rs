//! The blocks of a view: runs of equal layers, laid out and rendered.

use crate::build::builder::{Builder, ViewInput};
use crate::build::fold::{DrawnLayers, Section, list, runs, spans};
use crate::build::ir_graph::ir_graph;
use crate::build::operations::operation;
use crate::data::{DrawingBlock, DrawingOperation};
use crate::render;

/// The blocks of a view with the runs of layers that they draw: index, run, first phase.
pub(crate) fn blocks_of(
    builder: &mut Builder<'_>,
    input: &ViewInput<'_>,
) -> Vec<(usize, DrawnLayers, usize)> {
    // An IR has no phases yet; everything is in one.
    let zero = vec![0; input.ir.nodes.len()];
    let phases = input.phases.unwrap_or(&zero);
    let runs = runs(input.ir, phases);
    runs.into_iter()
        .map(|run| {
            let first = run.nodes[0].iter().map(|n| phases[*n]).min().unwrap_or(0);
            (block(builder, input, &run, first), run, first)
        })
        .collect()
}

/// The index of the block that draws `run`.
fn block(builder: &mut Builder<'_>, input: &ViewInput<'_>, run: &DrawnLayers, first_phase: usize) -> usize {
    let count = run.nodes.len();
    let (title, subtitle, layers) = heading(builder, run);
    let operations: Vec<DrawingOperation> =
        (0..run.nodes[0].len()).map(|at| operation(builder, input, run, at, first_phase)).collect();
    let phases = input
        .phases
        .map_or(0, |phases| run.nodes[0].iter().map(|n| phases[*n] - first_phase + 1).max().unwrap_or(0));
    // Compared before the layout, which takes most of the time. The scene follows from what is
    // compared here.
    let same = |b: &DrawingBlock| {
        b.phases == phases && b.count == count && b.title == title && b.operations == operations
    };
    if let Some(found) = builder.blocks.iter().position(same) {
        return found;
    }
    let graph = ir_graph(builder, input, &run.nodes[0], &operations, phases);
    let rendered = render::block(&graph, &title, &subtitle, count);
    builder.intern_block(DrawingBlock {
        title,
        subtitle,
        layers,
        count,
        phases,
        width: rendered.width,
        height: rendered.height,
        operations,
        scene: rendered.primitives,
    })
}

/// Title, subtitle, and spans of layers.
fn heading(builder: &Builder<'_>, run: &DrawnLayers) -> (String, String, Vec<(usize, usize)>) {
    match &run.section {
        Section::Embed => ("Embedding".into(), "from token ids to the residual stream".into(), Vec::new()),
        Section::Arrival => {
            ("From another rank".into(), "the residual stream after the layers before".into(), Vec::new())
        }
        Section::Departure => {
            ("To another rank".into(), "the residual stream after the last layer".into(), Vec::new())
        }
        Section::Head => ("Head".into(), "from the residual stream to logits".into(), Vec::new()),
        Section::Layers(layers) => {
            let plural = if layers.len() == 1 { "Layer" } else { "Layers" };
            let spec = &builder.layers[layers[0]];
            let block = builder.circuit.blocks.get(&spec.feed_forward);
            // By the operation and not by the block's name, which a circuit may choose freely.
            let routed = block.is_some_and(|block| block.ops.iter().any(|op| op.op == "expert_mlp"));
            let about = match builder.config.moe.filter(|_| routed) {
                Some(moe) => format!("{spec}: {} of {} experts", moe.num_experts_per_tok, moe.experts),
                None => spec.to_string(),
            };
            (format!("{plural} {}", list(layers)), about, spans(layers))
        }
    }
}
