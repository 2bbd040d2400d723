//! `latent check`: whether a model is supported, its kernels, and everything that is missing.

use super::hyper_parameters::{facts, rope};
use crate::args::{CheckArgs, EngineArgs};
use crate::exit::{UnsupportedModel, UsageError, usage_of};
use crate::output::Colour;
use crate::{model, output};
use anyhow::Result;
use latent_formats::{CheckpointSource, Outline, OutlineData, OutputFile};
use latent_graph::support::{self, Machine, MissingKind, OperationKernels, Similarity, SupportReport};
use latent_text::{ChatTemplate, TextError, Tokenizer};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Number of circuits that the text compares an unknown architecture with.
const MAX_SIMILAR: usize = 3;

pub(super) fn run(args: &CheckArgs) -> Result<()> {
    let outline = model::outline(args.path.as_deref().or(args.model.model.as_deref()))?;
    let options = args.model.engine.options();
    let backend = args.model.engine.backend()?;
    let (target, bind) = (backend.target(), options.bind(&*backend).map_err(usage_of)?);
    let circuit = model::circuit(args.model.engine.circuit.as_deref())?;
    let machine = Machine { target, bind, mla: options.mla, form: options.form, circuit: circuit.as_ref() };
    let support = support::support_report(&outline, machine)?;
    let side = TextSide::of(outline.source());
    // Before the verdict: the command fails for an unsupported architecture, which is what a draft
    // is for.
    if let Some(path) = &args.draft_circuit {
        write_draft(&outline, path)?;
    }
    if args.json {
        let mut value = serde_json::to_value(&support)?;
        // The name of `config` until 2026-11, kept for scripts.
        value["contract"] = value["config"].clone();
        value["circuit"] = json!(support.config.as_ref().map(|c| model::circuit_name(&args.model.engine, c)));
        value["supported"] = json!(support.supported && side.problems() == 0);
        value["tokenizer"] = side.tokenizer.json();
        value["chat_template"] = side.template.json();
        output::json(&value)?;
    } else {
        output::lines_in_colour(&text(&support, &side, &args.model.engine, bind.tier.name()), colour)?;
    }
    // A damaged file is an error (exit code 1), not an unsupported model (2).
    if let Some(damage) = outline.into_refusal().filter(|refusal| !refusal.is_unsupported()) {
        return Err(damage.into());
    }
    match support.missing.len() + side.problems() {
        0 => Ok(()),
        n => {
            let things = if n == 1 { "one thing is" } else { &format!("{n} things are") };
            Err(UnsupportedModel(format!("{}: not supported yet: {things} missing", support.file)).into())
        }
    }
}

/// Writes a draft of a circuit.
fn write_draft(outline: &Outline, path: &Path) -> Result<()> {
    let circuit = support::draft_circuit(outline).map_err(|error| UsageError(error.to_string()))?;
    let mut file = OutputFile::create(path)?;
    writeln!(file, "{}", serde_json::to_string_pretty(&circuit)?)?;
    file.finish()?;
    let open = support::open_notes(&circuit);
    output::note(&format!("{}: a draft, with {open} open notes under `draft`", path.display()));
    Ok(())
}

/// Tokenizer and chat template.
struct TextSide {
    tokenizer: CheckedPart,
    template: CheckedPart,
}

/// An optional part of a model.
enum CheckedPart {
    /// Missing; with a hint.
    None(&'static str),
    /// Present and supported: its kind.
    Supported(String),
    /// Present and not supported: its kind and the reason.
    Unsupported(String, String),
}

impl TextSide {
    fn of(source: &CheckpointSource) -> TextSide {
        let kind = match source {
            CheckpointSource::Gguf(gguf) => {
                let word = |key| gguf.metadata.str(key).ok().flatten().unwrap_or("no pre-tokenizer");
                let model = gguf.metadata.str("tokenizer.ggml.model").ok().flatten();
                model.map(|model| format!("{model} ({})", word("tokenizer.ggml.pre")))
            }
            CheckpointSource::HuggingFace(hf) => {
                hf.tokenizer.as_ref().map(|file| file.kind.file_name().to_owned())
            }
        };
        let tokenizer = match (kind, Tokenizer::from_source(source)) {
            (_, Err(TextError::Missing)) => {
                CheckedPart::None("none: configuration only; prompts are token ids (--tokens)")
            }
            (kind, Ok(tokenizer)) => CheckedPart::Supported(format!(
                "{}, {} tokens",
                kind.unwrap_or_default(),
                tokenizer.vocab_size()
            )),
            (kind, Err(error)) => CheckedPart::Unsupported(kind.unwrap_or_default(), error.to_string()),
        };
        let template = match source {
            CheckpointSource::Gguf(gguf) => gguf.metadata.str("tokenizer.chat_template").ok().flatten(),
            CheckpointSource::HuggingFace(hf) => hf.chat_template.as_deref(),
        };
        let template =
            match template.map(|text| (format!("Jinja, {} bytes", text.len()), ChatTemplate::new(text))) {
                None => CheckedPart::None("none: prompts are used unchanged (--raw)"),
                Some((kind, Ok(_))) => CheckedPart::Supported(kind),
                Some((kind, Err(error))) => CheckedPart::Unsupported(kind, error.to_string()),
            };
        TextSide { tokenizer, template }
    }

    /// Number of parts that are present but not supported.
    fn problems(&self) -> usize {
        [&self.tokenizer, &self.template].into_iter().filter(|part| part.problem().is_some()).count()
    }
}

impl CheckedPart {
    fn problem(&self) -> Option<&str> {
        match self {
            CheckedPart::Unsupported(_, problem) => Some(problem),
            _ => None,
        }
    }

    fn line(&self) -> &str {
        match self {
            CheckedPart::None(why) => why,
            CheckedPart::Supported(kind) | CheckedPart::Unsupported(kind, _) => kind,
        }
    }

    fn json(&self) -> Value {
        match self {
            CheckedPart::None(_) => Value::Null,
            CheckedPart::Supported(kind) => json!({"kind": kind, "supported": true}),
            CheckedPart::Unsupported(kind, problem) => {
                json!({"kind": kind, "supported": false, "problem": problem})
            }
        }
    }
}

/// The colour of verdicts and missing parts.
fn colour(line: &str) -> Option<Colour> {
    match line {
        "supported      yes" => Some(Colour::Green),
        "missing" => Some(Colour::Red),
        line if line.starts_with("supported      ") => Some(Colour::Red),
        line if line.starts_with("assumed        ") => Some(Colour::Yellow),
        _ => None,
    }
}

fn text(support: &SupportReport, side: &TextSide, args: &EngineArgs, tier: &str) -> String {
    let data = match support.data {
        OutlineData::Whole => "whole file",
        OutlineData::Header => "header only: the data is missing",
        OutlineData::Config => "config.json only",
    };
    let mut lines = vec![format!("{}: {data}", support.file)];
    let circuit = support.config.as_ref().map(|c| format!(" (circuit {})", model::circuit_name(args, c)));
    lines.push(format!("architecture   {}{}", support.architecture, circuit.unwrap_or_default()));
    if let Some(config) = &support.config {
        lines.extend(facts(config, &support.layers));
        lines.extend(rope(config));
    }
    lines.push(format!("tokenizer      {}", side.tokenizer.line()));
    lines.push(format!("chat template  {}", side.template.line()));
    let missing = support.missing.len() + side.problems();
    let verdict = match (&support.refused, missing) {
        (None, 0) => "yes".into(),
        (Some(damage), 0) => format!("no: the files cannot be opened: {damage}"),
        (_, missing) => format!("not yet: {missing} missing"),
    };
    wrapped(&mut lines, "supported      ", &verdict);
    for warning in &support.warnings {
        wrapped(&mut lines, "warning        ", warning);
    }
    for assumed in &support.assumed {
        wrapped(&mut lines, "assumed        ", assumed);
    }
    if missing > 0 {
        lines.push(String::new());
        lines.push("missing".into());
        for missing in &support.missing {
            let kind = match missing.kind {
                MissingKind::Architecture => "architecture",
                MissingKind::Key => "key",
                MissingKind::Tensor => "tensor",
                MissingKind::Unread => "unread tensor",
                MissingKind::Format => "format",
                MissingKind::Kernel => "kernel",
            };
            wrapped(&mut lines, &format!("  {kind:<14}"), &format!("{}: {}", missing.what, missing.problem));
        }
    }
    for (kind, part) in [("tokenizer", &side.tokenizer), ("chat template", &side.template)] {
        if let Some(problem) = part.problem() {
            wrapped(&mut lines, &format!("  {kind:<14}"), problem);
        }
    }
    add_similar(support, &mut lines);
    if !support.unread.is_empty() {
        lines.push(String::new());
        lines.push("keys that are not read and may require more operations".into());
        lines.extend(support.unread.iter().map(|key| format!("  {key}")));
    }
    operations(support, tier, &mut lines);
    lines.push(String::new());
    output::joined(&lines)
}

/// Compares an unknown architecture with known circuits.
fn add_similar(support: &SupportReport, lines: &mut Vec<String>) {
    let Some(best) = support.closest.first() else { return };
    lines.push(String::new());
    lines.push("closest known  share  keys   choices  slots  tensors  dimensions".into());
    let share = |(some, all): (usize, usize)| if all == 0 { "-".to_owned() } else { format!("{some}/{all}") };
    for like in support.closest.iter().take(MAX_SIMILAR) {
        let Similarity { name, score, keys, choices, slots, tensors, dimensions, .. } = like;
        let slots = if tensors.1 == 0 { "-".to_owned() } else { share(*slots) };
        lines.push(format!(
            "  {name:<13}{:>4.0} %  {:<6} {:<8} {slots:<6} {:<8} {}",
            // Rounded down, so that 100 % means no difference.
            (score * 100.0).floor(),
            share(*keys),
            share(*choices),
            share(*tensors),
            share(*dimensions)
        ));
    }
    wrapped(lines, "  lacks keys   ", &best.keys_missing.join(" "));
    wrapped(lines, "  chooses      ", &best.choices_other.join(", "));
    wrapped(lines, "  no slot for  ", &best.tensors_unknown.join(" "));
}

/// Lists operations and their kernels.
fn operations(support: &SupportReport, tier: &str, lines: &mut Vec<String>) {
    if support.operations.is_empty() {
        return;
    }
    let of = match support.closest.first() {
        Some(best) if support.config.is_none() => format!(" of {}, the closest", best.name),
        _ => String::new(),
    };
    lines.push(String::new());
    lines.push(format!("operations{of}: kernels on this machine, up to {tier}"));
    lines.push(format!(
        "  {:<16} {:<8} {:>5}  {:<26} {}",
        "operation", "format", "nodes", "binds", "also there"
    ));
    for operation in &support.operations {
        let OperationKernels { operation: word, format, nodes, available, binds, portable, .. } = operation;
        let kernel = binds.as_ref().map_or("none", |b| b.kernel.as_str());
        let mut others: Vec<&str> = Vec::new();
        for other in available.iter().filter(|k| Some(*k) != binds.as_ref()) {
            if !others.contains(&other.tier.as_str()) {
                others.push(&other.tier);
            }
        }
        let format = format.as_deref().unwrap_or("");
        let mark = if *portable { " (portable)" } else { "" };
        lines.push(
            format!(
                "  {word:<16} {format:<8} {nodes:>5}  {:<26} {}",
                format!("{kernel}{mark}"),
                others.join(" ")
            )
            .trim_end()
            .to_owned(),
        );
    }
}

/// Adds a wrapped text behind a heading, unless it is empty.
fn wrapped(lines: &mut Vec<String>, heading: &str, text: &str) {
    if !text.is_empty() {
        lines.extend(output::wrapped(heading, heading.chars().count(), text, output::width()));
    }
}
