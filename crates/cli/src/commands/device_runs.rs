//! GPU calls of a plan's operations, for `latent graph`. The model is loaded on the device without
//! memory.

use crate::args::EngineArgs;
use crate::{model, output};
use anyhow::Result;
use latent_engine::{Engine, EngineOptions};
use latent_formats::Outline;
use latent_graph::passes::BatchBucket;
use latent_viz::DeviceRuns;
use std::path::Path;
use std::sync::Arc;

/// Cached tokens before the inspected steps.
const CACHED_TOKENS: usize = 1024;

/// The calls of steps with these rows; empty on a device whose kernels are functions.
pub(super) fn device_runs(
    args: &EngineArgs,
    (outline, path): (&Outline, Option<&Path>),
    rows: &[usize],
) -> Result<DeviceRuns> {
    let backend = args.hollow_backend()?;
    if backend.name() != "gpu" || args.partition.is_some() {
        return Ok(DeviceRuns::default());
    }
    let runs = DeviceRuns::new(args.device_name());
    if outline.whole().is_none() {
        output::note("the file has no weights, so their GPU kernels are not shown");
        return Ok(runs);
    }
    let most = rows.iter().copied().max().unwrap_or(1);
    let options = EngineOptions {
        circuit: model::circuit(args.circuit.as_deref())?.map(Arc::new),
        context: Some(CACHED_TOKENS + most),
        max_batch_tokens: Some(most),
        // A hollow device allocates nothing, so the model need not fit into memory.
        force: true,
        ..args.options()
    };
    let mut engine = Engine::load(&*backend, &model::open(path)?, &options, &mut |_, _| {})?;
    add(runs, &mut engine, rows)
}

fn add(mut runs: DeviceRuns, engine: &mut Engine, rows: &[usize]) -> Result<DeviceRuns> {
    for &rows in rows {
        let bucket = BatchBucket::of(rows);
        for node in engine.kernel_calls(rows, CACHED_TOKENS)? {
            let head = node.stage == latent_graph::stage_index::LM_HEAD;
            // lm_head runs on one row: the one whose logits are requested.
            let plan = engine.stages()[node.stage].plan(if head { 1 } else { rows });
            runs.add(bucket, &plan.ir, &plan.ir.nodes[node.node], node.kernels);
        }
    }
    Ok(runs)
}
