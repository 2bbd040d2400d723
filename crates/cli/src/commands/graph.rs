//! `latent graph`: the circuit, the IR or the plan of a model as text, JSON or Graphviz.

use crate::args::{Drawing, GraphArgs, Stage};
use crate::exit::Usage;
use crate::{model, output};
use anyhow::Result;
use engine::cpu;
use graph::ir::{Ir, Span};
use graph::passes::{BindOptions, Precision, RowClass};
use graph::{CheckpointTensors, Circuit, Contract, Plan, PlanOptions};
use std::ops::Range;

pub(super) fn run(args: &GraphArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let contract = Contract::from_checkpoint(&checkpoint)?;
    let format = if args.json { Drawing::Json } else { args.format };
    let own = model::circuit(&args.model)?;
    let circuit = match &own {
        Some(circuit) => circuit,
        None => Circuit::named(&contract.circuit)?,
    };
    if let Stage::Circuit = args.stage {
        return match format {
            Drawing::Dot => {
                Err(Usage("a circuit has no drawing: ask for `latent graph ir --format dot`".into()).into())
            }
            _ => output::json(&serde_json::to_value(circuit)?),
        };
    }
    let layers = layers(args.layers.as_deref(), contract.layers)?;
    let whole = layers == (0..contract.layers);
    let span = Span { embed: layers.start == 0, layers, head: whole };
    let ir = Ir::build_with(circuit, &contract, &span, &CheckpointTensors(&checkpoint))?;
    if let Stage::Ir = args.stage {
        return print(&ir, None, format, &ir.to_text(None), serde_json::to_value(&ir)?);
    }
    let options = args.model.options();
    let exact = options.precision == Precision::Exact;
    let cache = options.cache.unwrap_or(if exact { base::CacheType::F32 } else { base::CacheType::F16 });
    let tier = cpu::tier_for(options.tier).map_err(Usage)?;
    let plan = Plan::from_ir(
        ir,
        &contract,
        &cpu::kernel_contracts(),
        &PlanOptions {
            span,
            class: RowClass::of(args.rows),
            largest: usize::from(args.model.chunk).max(args.rows),
            mla: options.mla,
            form: options.form,
            bind: BindOptions { precision: options.precision, tier, cache },
        },
    )?;
    print(&plan.ir, Some(&plan.phases), format, &plan.to_text(), serde_json::to_value(&plan)?)
}

fn print(
    ir: &Ir,
    phases: Option<&[usize]>,
    format: Drawing,
    text: &str,
    json: serde_json::Value,
) -> Result<()> {
    match format {
        Drawing::Text => output::now(text),
        Drawing::Json => output::json(&json),
        Drawing::Dot => output::now(&ir.to_dot(phases)),
    }
}

/// `A..B`, or all.
pub(super) fn layers(word: Option<&str>, count: usize) -> Result<Range<usize>> {
    let Some(word) = word else { return Ok(0..count) };
    let parsed = word.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    match parsed {
        Some(range) if range.start < range.end && range.end <= count => Ok(range),
        _ => Err(Usage(format!("--layers {word}: expected A..B with A < B ≤ {count}, such as 0..2")).into()),
    }
}
