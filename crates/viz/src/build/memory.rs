//! The arena of a plan over its phases, for the first layer of each block.

use crate::build::fold::DrawnLayers;
use crate::build::labels::port_shape;
use crate::data::{ArenaChart, Buffer};
use latent_graph::Plan;
use latent_graph::ir::ValueId;
use latent_graph::passes::lifetimes;

/// The arena of `plan`, whose blocks draw `runs`.
pub(crate) fn of(plan: &Plan, runs: &[(usize, DrawnLayers, usize)]) -> ArenaChart {
    let lives = lifetimes(&plan.ir, &plan.phases, plan.max_rows);
    let mut memory = ArenaChart {
        arena_bytes: plan.arena.bytes,
        max_rows: plan.max_rows,
        columns: 0,
        repeats: true,
        buffers: Vec::new(),
    };
    for (block, (_, run, first_phase)) in runs.iter().enumerate() {
        let mut first_layer: Vec<(usize, usize)> = Vec::new();
        let mut columns = 0;
        for (repetition, nodes) in run.nodes.iter().enumerate() {
            let start = nodes.iter().map(|n| plan.phases[*n]).min().unwrap_or(0);
            let end = nodes.iter().map(|n| plan.phases[*n]).max().unwrap_or(0);
            let made = |value: usize| {
                nodes.iter().any(|n| {
                    let node = &plan.ir.nodes[*n];
                    node.outputs.iter().any(|id| plan.ir.root(*id) == ValueId(value))
                })
            };
            let mut here = Vec::new();
            for life in lives.iter().filter(|life| made(life.value)) {
                let Some(offset) = plan.arena.offsets[life.value] else { continue };
                here.push((offset, life.bytes));
                if repetition == 0 {
                    memory.buffers.push(Buffer {
                        name: plan.ir.values[life.value].name.clone(),
                        shape: port_shape(&plan.ir, ValueId(life.value)),
                        block,
                        first: memory.columns + life.first.saturating_sub(*first_phase),
                        // A value of a layer may live into the next one, which is another column of
                        // the chart.
                        last: memory.columns + life.last.min(end).saturating_sub(*first_phase),
                        offset,
                        bytes: life.bytes,
                    });
                }
            }
            if repetition == 0 {
                columns = end - start + 1;
                first_layer = here;
            } else {
                // The chart shows the first layer only. The page says so if other layers use other
                // offsets.
                memory.repeats &= here == first_layer;
            }
        }
        memory.columns += columns;
    }
    memory
}
