//! `latent self-test`: whether this machine computes correctly, and what limits its speed.

mod logits_check;
mod machine;

use crate::args::SelfTestArgs;
use crate::exit::ReportedProblems;
use crate::{model, output};
use anyhow::{Context, Result};
use latent_backend::{Backend, BackendError};
use latent_engine::EngineOptions;
use latent_graph::passes::Precision;
use latent_text::{EncodeOptions, Tokenizer};
use latent_types::Tier;
use logits_check::{CheckInput, LogitsCheck, run};
use machine::MachineReport;
use serde_json::json;
use std::time::Instant;

/// A text in the style that the demo model was trained on.
const TEXT: &str = "Once upon a time there was a little fox who had a lantern. Every night the fox walked through the forest.";

/// Maximum mean relative square error of exact precision.
// Measured: 1e-13 on CPUs, 1e-12 on a software GPU.
const MAX_EXACT_ERROR: f64 = 1e-9;

/// Maximum mean relative square error of default precision, whose activations have 8 bits.
// Measured: 2e-4.
const MAX_DEFAULT_ERROR: f64 = 2e-3;

pub(super) fn run_all(args: &SelfTestArgs) -> Result<()> {
    let begin = Instant::now();
    let machine = MachineReport::measure()?;
    if !args.json {
        output::items(&machine.lines())?;
    }
    let checks = match cfg!(feature = "demo") {
        true => check_devices(&machine)?,
        false => Vec::new(),
    };
    let seconds = begin.elapsed().as_secs_f64();
    let failed = checks.iter().filter(|check| !check.passed()).count();
    if args.json {
        output::json(&json!({
            "latent": env!("CARGO_PKG_VERSION"),
            "machine": machine.json(),
            "checks": checks.iter().map(LogitsCheck::json).collect::<Vec<_>>(),
            "failed": failed,
            "seconds": seconds,
        }))?;
    } else {
        let mut lines = vec![match checks.first() {
            Some(first) => {
                format!("logits of the demo model for {} tokens, against the reference:", first.rows)
            }
            None => "logits: not checked, because this build has no demo model (feature `demo`)".into(),
        }];
        lines.extend(checks.iter().map(LogitsCheck::line));
        lines.push(format!("{} of {} checks passed in {seconds:.1} s", checks.len() - failed, checks.len()));
        output::items(&lines)?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(ReportedProblems(format!(
            "{failed} of {} checks failed: report this with the whole output; a failing device produces \
             wrong text",
            checks.len()
        ))
        .into()),
    }
}

/// Checks the demo model on every device in both precisions, and on the CPU with every instruction
/// set.
fn check_devices(machine: &MachineReport) -> Result<Vec<LogitsCheck>> {
    let checkpoint = model::open(None)?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?;
    let tokens = tokenizer.encode(TEXT, EncodeOptions { add_special: true, parse_special: false })?;
    let precisions =
        [("exact", Precision::Exact, MAX_EXACT_ERROR), ("default", Precision::Default, MAX_DEFAULT_ERROR)];
    let options = |precision, tier| EngineOptions {
        precision,
        tier,
        context: Some(tokens.len()),
        max_batch_tokens: Some(tokens.len()),
        ..EngineOptions::default()
    };
    let input = CheckInput { checkpoint: &checkpoint, tokens: &tokens };
    let reference = run(input, &*latent_backends::reference(), &options(Precision::Exact, None))
        .context("the reference backend")?;
    let mut checks = Vec::new();
    // All tiers up to the machine's are tested: --isa and LATENT_ISA can select any of them.
    let cpu = latent_backends::cpu();
    for tier in Tier::ALL.into_iter().filter(|tier| *tier <= machine.tier) {
        for (word, precision, bound) in precisions {
            let got = run(input, &*cpu, &options(precision, Some(tier)));
            checks.push(LogitsCheck::new(format!("cpu, {tier}, {word}"), bound, &reference, got));
        }
    }
    for number in 0..machine.gpus.len() {
        let device = format!("gpu:{number}");
        // The device is opened once, so that its shaders are compiled once.
        let gpu = latent_backends::by_name(&device);
        for (word, precision, bound) in precisions {
            let got = on(&gpu, input, &options(precision, None));
            checks.push(LogitsCheck::new(format!("{device}, {word}"), bound, &reference, got));
        }
    }
    Ok(checks)
}

/// The logits on a device that may have failed to open.
fn on(
    gpu: &Result<Box<dyn Backend>, BackendError>,
    input: CheckInput<'_>,
    options: &EngineOptions,
) -> Result<Vec<Vec<f32>>> {
    match gpu {
        Ok(gpu) => run(input, &**gpu, options),
        Err(error) => Err(anyhow::anyhow!("{error}")),
    }
}
