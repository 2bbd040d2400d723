//! `latent graph`: the circuit, the IR or the plan of a model as text, JSON, Graphviz or a drawing.

use super::device_runs::device_runs;
use super::draw;
use super::emit_c;
use super::layers::layers;
use super::partition::{part, refuse_ranks};
use super::stage::{PrintedStage, bind};
use crate::args::{GraphArgs, GraphFormat, MAX_STEP_ROWS};
use crate::exit::UsageError;
use crate::{model, output};
use anyhow::Result;
use latent_graph::ir::{Ir, ModelSpan};
use latent_graph::passes::{self, BatchBucket};
use latent_graph::{BankConflicts, CheckpointTensors, KernelCalls, Plan, PlanOptions};
use latent_viz::DeviceRuns;
use std::path::PathBuf;

pub(super) fn run(args: &GraphArgs) -> Result<()> {
    let (stage, path) = words(args)?;
    check_rows(args.rows())?;
    if let Some(folder) = &args.emit_c {
        return emit_c::run(args, stage, path.as_deref(), folder);
    }
    let format = if args.json { GraphFormat::Json } else { args.format };
    check_after(args, stage, format)?;
    if args.html.is_some() || matches!(format, GraphFormat::Svg | GraphFormat::Data) {
        return draw::run(args, stage, path.as_deref());
    }
    let model = model::describe(path.as_deref(), args.model.engine.circuit.as_deref())?;
    let (config, circuit) = (&model.config, &*model.circuit);
    if let Some(promised) = &model.promised {
        output::say(&format!(
            "{}: the file lists no tensors: assuming {} matrices",
            model.outline.display_name(),
            promised.matrix_type()
        ));
    }
    if stage == PrintedStage::Circuit {
        refuse_ranks("graph circuit", &args.model.engine)?;
        return match format {
            GraphFormat::Dot => Err(UsageError(
                "circuits cannot be drawn with Graphviz: use `latent graph ir --format dot`, or --format svg"
                    .into(),
            )
            .into()),
            _ => output::json(&serde_json::to_value(circuit)?),
        };
    }
    let part = part(args, config)?;
    let config = part.as_ref().unwrap_or(config);
    let layers = layers(args.layers.as_deref(), config.layers)?;
    let whole = layers == (0..config.layers);
    // --layers cuts the model: the embedding belongs to the first layer, the head only to the
    // whole.
    let span = match args.model.engine.draft.has_mtp() {
        true => ModelSpan::whole_mtp(circuit, config)?,
        false if part.is_some() => ModelSpan::backbone(config),
        false => ModelSpan { embed: layers.start == 0, layers, head: whole, mtp: false },
    };
    let adapted = model::adapted(path.as_deref(), &args.model.engine)?;
    let adapted = adapted.as_ref().map(CheckpointTensors);
    let tensors = adapted.as_ref().map_or(model.tensors(), |tensors| tensors);
    let ir = Ir::build_with(circuit, config, &span, tensors)?;
    if stage == PrintedStage::Ir && args.after.is_none() {
        return print(&ir, None, format, &ir.to_text(None), serde_json::to_value(&ir)?);
    }
    let (options, backend) = (args.model.engine.options(), args.model.engine.hollow_backend()?);
    let target = options.target(&*backend);
    let options = PlanOptions {
        span,
        bucket: BatchBucket::of(args.rows()),
        max_batch_tokens: args.model.engine.max_batch_tokens().max(args.rows()),
        mla: options.mla,
        form: options.form,
        bind: bind(args)?,
    };
    if let Some(pass) = &args.after {
        let ir = passes::after(pass, ir, &options.pass_input(config, &target))?;
        return print(&ir, None, format, &ir.to_text(None), serde_json::to_value(&ir)?);
    }
    let plan = Plan::from_ir(ir, config, &target, &options)?;
    let runs = device_runs(&args.model.engine, (&model.outline, path.as_deref()), &[args.rows()])?;
    let (text, json) = with_runs(&plan, &runs)?;
    print(&plan.ir, Some(&plan.phases), format, &text, json)
}

/// A plan as text and JSON. On a GPU, each operation is followed by its calls.
fn with_runs(plan: &Plan, runs: &DeviceRuns) -> Result<(String, serde_json::Value)> {
    let (mut text, mut json) = (String::new(), serde_json::to_value(plan)?);
    let mut nodes = plan.ir.nodes.iter().enumerate().peekable();
    let mut found = Vec::new();
    for line in plan.to_text().lines() {
        text.push_str(line);
        text.push('\n');
        // A node's line in the plan's text ends with its line in the IR's text. Lines of phases and
        // buffers do not.
        let Some((i, node)) = nodes.next_if(|(_, node)| line.ends_with(&plan.ir.line(node))) else {
            continue;
        };
        let Some(run) = runs.of(plan.bucket, &plan.ir, node) else { continue };
        run.kernels.iter().for_each(|call| text.push_str(&called(&run.device, call)));
        let mut value = serde_json::to_value(run)?;
        value["node"] = i.into();
        found.push(value);
    }
    if !found.is_empty() {
        json["runs"] = found.into();
    }
    Ok((text, json))
}

/// `gpu: gemv1_Q4_K ×1, 64 workgroups of 64 threads, 512 bytes of workgroup memory`.
fn called(device: &str, call: &KernelCalls) -> String {
    let KernelCalls { kernel, calls, workgroups, threads, memory, conflicts, compiled } = call;
    let mut text = format!("      {device}: {kernel} ×{calls}");
    if *threads > 0 {
        let plural = if *workgroups == 1 { "" } else { "s" };
        text += &format!(", {workgroups} workgroup{plural} of {threads} threads");
    }
    if *memory > 0 {
        text += &format!(", {memory} bytes of workgroup memory");
    }
    let BankConflicts { accesses, conflicting, worst } = conflicts;
    if *conflicting > 0 {
        text += &format!(", bank conflicts ({worst}-fold) in {conflicting} of {accesses} accesses");
    }
    if let Some(instructions) = compiled.instructions {
        text += &format!(", {instructions} instructions");
    }
    if let Some(registers) = compiled.registers {
        text += &format!(", {registers} registers");
    }
    if let Some(spilled) = compiled.spilled.filter(|spilled| *spilled > 0) {
        text += &format!(" and {spilled} in memory");
    }
    text + "\n"
}

/// Checks `--after`: it is for the IR and names a pass.
fn check_after(args: &GraphArgs, stage: PrintedStage, format: GraphFormat) -> Result<()> {
    let Some(name) = &args.after else { return Ok(()) };
    if stage != PrintedStage::Ir || matches!(format, GraphFormat::Svg | GraphFormat::Data) {
        let problem = "--after requires `latent graph ir` with the format text, json or dot";
        return Err(UsageError(format!("{problem}: latent graph ir --after {name}")).into());
    }
    let passes: Vec<&str> = passes::pipeline().iter().map(|pass| pass.name).collect();
    if passes.contains(&name.as_str()) {
        return Ok(());
    }
    Err(UsageError(format!("--after {name}: unknown pass; the passes in order are {}", passes.join(", ")))
        .into())
}

/// Checks the number of rows.
fn check_rows(rows: usize) -> Result<()> {
    let (few, most) = (BatchBucket::SMALL_BATCH, MAX_STEP_ROWS as usize);
    if (1..=most).contains(&rows) {
        return Ok(());
    }
    Err(UsageError(format!(
        "--rows {rows}: expected 1 to {most}; there are plans for decode (1 row), small batches (2 to {few}) \
         and prefill ({} to {most})",
        few + 1
    ))
    .into())
}

/// The stage and the model, in any order.
fn words(args: &GraphArgs) -> Result<(PrintedStage, Option<PathBuf>)> {
    let (mut stage, mut path) = (None, None);
    for word in &args.words {
        match PrintedStage::ALL.iter().find(|(name, _)| name == word) {
            Some((_, found)) if stage.is_none() => stage = Some(*found),
            Some(_) => {
                return Err(UsageError(format!(
                    "{word}: only one stage at a time; for a model of this name, use ./{word}"
                ))
                .into());
            }
            None if path.is_none() => path = Some(PathBuf::from(word)),
            None => {
                return Err(UsageError(format!(
                    "{word}: only one model at a time; the stages are circuit, ir and plan"
                ))
                .into());
            }
        }
    }
    // A model on the command line overrides LATENT_MODEL, which clap has put into the same field.
    // Only two models on the command line are an error.
    let from_flag = args.model.model.clone();
    if let (Some(path), Some(flag)) = (&path, &from_flag)
        && std::env::var_os("LATENT_MODEL").is_none_or(|set| set != flag.as_os_str())
    {
        let (path, flag) = (path.display(), flag.display());
        return Err(UsageError(format!(
            "two models: {path} and -m {flag}; the stages are circuit, ir and plan"
        ))
        .into());
    }
    Ok((stage.unwrap_or(PrintedStage::Plan), path.or(from_flag)))
}

fn print(
    ir: &Ir,
    phases: Option<&[usize]>,
    format: GraphFormat,
    text: &str,
    json: serde_json::Value,
) -> Result<()> {
    match format {
        GraphFormat::Json => output::json(&json),
        GraphFormat::Dot => output::multiline(&ir.to_dot(phases)),
        _ => output::multiline(text),
    }
}
