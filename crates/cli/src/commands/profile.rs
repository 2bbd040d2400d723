//! `latent profile`: each phase of decoding and of a prompt, beside the limit that binds it, measured in the same run.

use super::bench::token;
use crate::args::ProfileArgs;
use crate::{interrupt, model, output};
use anyhow::{Context, Result};
use engine::cache::Sequence;
use engine::{Engine, EngineError, Item, Limits, PhaseProfile, StepProfile, StepSize, Wanted};
use serde_json::json;

pub(super) fn run(args: &ProfileArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let mut model_args = args.model.clone();
    model_args.ctx.get_or_insert((args.depth + args.prompt.max(args.generate + 2)).max(1));
    let mut engine = model::load(&checkpoint, &model_args, args.json)?;
    let summary = engine.summary();
    let limits =
        Limits::measure(&summary.placement, summary.tier).context("measuring what the machine can do")?;
    let vocab = engine.contract().vocab_size;
    let tokens: Vec<u32> = (0..args.depth + args.prompt + args.generate).map(|i| token(i, vocab)).collect();
    let mut sequence = Sequence::default();
    let (before, rest) = tokens.split_at(args.depth);
    let (prompt, generated) = rest.split_at(args.prompt);
    let chunk = engine.chunk_for(prompt.len());
    let go_on = &mut |_: usize| !interrupt::asked();
    if !before.is_empty() {
        engine.prefill(&mut sequence, before, chunk, Wanted::Nothing, &mut |_, _| {}, go_on)?;
    }
    let mut profiles = Vec::new();
    if !generated.is_empty() {
        let sizes: Vec<StepSize> =
            (0..generated.len()).map(|i| StepSize::decode(1, args.depth + i)).collect();
        profiles.push(measure(&mut engine, &mut sequence, generated, &sizes, &limits)?);
    }
    if !prompt.is_empty() {
        let sizes = StepSize::prompt(prompt.len(), args.depth, chunk);
        profiles.push(measure(&mut engine, &mut sequence, prompt, &sizes, &limits)?);
    }
    engine.release(sequence);
    if args.json {
        return output::json(&json!({ "limits": limits, "steps": profiles }));
    }
    let threads = engine.summary().placement.threads();
    output::line(&format!("limits of {threads} threads: {limits}"))?;
    profiles.iter().try_for_each(print)
}

/// Runs `tokens` in steps of these sizes, once to warm up and once to measure.
fn measure(
    engine: &mut Engine,
    sequence: &mut Sequence,
    tokens: &[u32],
    sizes: &[StepSize],
    limits: &Limits,
) -> Result<StepProfile> {
    let depth = sequence.len();
    let mut once = |engine: &mut Engine| -> Result<(), EngineError> {
        engine.truncate(sequence, depth);
        let mut rest = tokens;
        for size in sizes {
            if interrupt::asked() {
                return Err(EngineError::Stopped);
            }
            let part;
            (part, rest) = rest.split_at(size.rows);
            let wanted = if size.wanted > 0 { Wanted::Last } else { Wanted::Nothing };
            let mut items = [Item { sequence, tokens: part, wanted }];
            engine.step(&mut items, &mut |_, _, _| {})?;
        }
        Ok(())
    };
    once(engine)?;
    // decoding steps are alike: their average is shown; of a prompt, all steps together
    let repeated = sizes.iter().all(|size| size.rows == 1);
    let profile = engine.profile(sizes, repeated, limits, &mut once)?;
    engine.truncate(sequence, depth);
    Ok(profile)
}

fn print(step: &StepProfile) -> Result<()> {
    let what = match (step.rows, step.steps) {
        (1, _) => format!("decode after {} tokens: {:.2} ms a step", step.cached, step.millis),
        (rows, 1) => format!("prompt of {rows} after {} tokens: {:.2} ms", step.cached, step.millis),
        (rows, steps) => {
            format!("prompt of {rows} in {steps} steps after {} tokens: {:.2} ms", step.cached, step.millis)
        }
    };
    output::line(&format!(
        "\n{what}, {:.1} t/s;\n{} phases and barriers, {} kernels a step",
        step.tokens_per_s, step.barriers, step.kernels
    ))?;
    output::line(&format!(
        "{:<8}{:<26}{:>8}{:>4}{:>7}{:>6} {:>7} {:<6}{:>6}",
        "layers", "phase", "µs", "×", "time", "GB/s", "GFLOP/s", "limit", "of it"
    ))?;
    for phase in &step.phases {
        for (i, operation) in phase.operations.iter().enumerate() {
            output::line(&if i == 0 { row(phase, operation) } else { format!("{:8}{operation}", "") })?;
        }
        for kernel in &phase.kernels {
            output::line(&format!("{:10}{kernel}", ""))?;
        }
    }
    let mut costly: Vec<&PhaseProfile> = step.phases.iter().collect();
    costly.sort_by(|a, b| b.share.total_cmp(&a.share));
    output::line("costliest:")?;
    for phase in costly.iter().take(3) {
        output::line(&format!(
            "  {:>4.1} %  {} ({})",
            100.0 * phase.share,
            phase.operations.join(", "),
            layers(phase)
        ))?;
    }
    Ok(())
}

fn layers(phase: &PhaseProfile) -> String {
    match phase.layers {
        Some((first, last)) if first == last => format!("L{first}"),
        Some((first, last)) => format!("L{first}–{last}"),
        None => "–".into(),
    }
}

fn row(phase: &PhaseProfile, operation: &str) -> String {
    let short: String = operation.chars().take(25).collect();
    let limit = if phase.bound == "memory" { "memory" } else { "arith." };
    format!(
        "{:<8}{short:<26}{:>8.1}{:>4}{:>5.1} %{:>6.1} {:>7.0} {limit:<6}{:>4.0} %",
        layers(phase),
        phase.micros,
        phase.count,
        100.0 * phase.share,
        phase.gb_per_s,
        phase.gflop_per_s,
        100.0 * phase.of_limit
    )
}
