//! `latent diff`: compares two runs and finds the first activation where they differ.

use super::batched::token;
use super::layers::layers;
use crate::args::{DiffArgs, EngineArgs, isa};
use crate::exit::{ReportedDifferences, UsageError};
use crate::output::Colour;
use crate::{interrupt, model, output};
use anyhow::Result;
use latent_engine::{ActivationTrace, Engine};
use latent_evaluate::compare::{
    ComparedRun, ComparisonReport, Numerics, PointReport, PointVerdict, Tolerance, compare, dump,
};
use latent_graph::activations::Activations;
use latent_graph::passes::Precision;
use serde_json::json;
use std::path::Path;

/// Default number of tokens.
// Enough for the prefill plan, which keeps most activations.
const DEFAULT_TOKENS: usize = 24;

struct DescribedRun {
    points: Activations,
    trace: ActivationTrace,
    numerics: Option<Numerics>,
    what: String,
}

pub(super) fn run(args: &DiffArgs) -> Result<()> {
    check_numbers(args)?;
    let mut a_args = args.model.engine.clone();
    if args.a.is_empty() {
        // By default any device is compared with exact precision on the CPU.
        ["precision=exact", "device=cpu"].iter().try_for_each(|word| set(&mut a_args, word, "--a"))?;
    }
    args.a.iter().try_for_each(|word| set(&mut a_args, word, "--a"))?;
    let mut b_args = args.model.engine.clone();
    args.b.iter().try_for_each(|word| set(&mut b_args, word, "--b"))?;
    let b_model = args.model_b.as_deref().or(args.model.model.as_deref());
    let given = (!args.tokens.is_empty()).then_some(&args.tokens[..]);
    let (a, b) = if let Some(path) = &args.dump {
        let mut tokens = given.map(<[u32]>::to_vec);
        // The dump decides the tokens, unless they are given. It can be read only after the model's
        // activations are known.
        let b = run_side(args, &b_args, b_model, &mut |points, _| {
            let trace = dump::read(path, points, tokens.as_deref())?;
            tokens = Some(trace.tokens().to_vec());
            Ok((trace.tokens().to_vec(), Some(trace)))
        })?;
        let (ran, theirs) = b;
        let a = DescribedRun {
            points: ran.points.clone(),
            trace: theirs.unwrap_or_default(),
            numerics: None,
            what: path.display().to_string(),
        };
        (a, ran)
    } else {
        let mut choose = |_: &Activations, vocab: usize| -> Result<(Vec<u32>, Option<ActivationTrace>)> {
            let arbitrary = || (0..DEFAULT_TOKENS).map(|i| token(i, vocab)).collect();
            Ok((given.map_or_else(arbitrary, <[u32]>::to_vec), None))
        };
        // One after the other, so that both models need not fit into memory together.
        let (a, _) = run_side(args, &a_args, args.model.model.as_deref(), &mut choose)?;
        let (b, _) = run_side(args, &b_args, b_model, &mut choose)?;
        (a, b)
    };
    let mut tolerance = Tolerance::between(a.numerics.as_ref(), b.numerics.as_ref());
    tolerance.level = args.tolerance.unwrap_or(tolerance.level);
    tolerance.growth = args.growth.unwrap_or(tolerance.growth);
    let side = |ran: &'_ DescribedRun| -> (String, usize) { (ran.what.clone(), ran.trace.tokens().len()) };
    let ((a_what, rows), (b_what, _)) = (side(&a), side(&b));
    let report = compare(
        ComparedRun { points: &a.points, trace: &a.trace },
        ComparedRun { points: &b.points, trace: &b.trace },
        tolerance,
    )?;
    if args.json {
        output::json(&json!({
            "a": a_what,
            "b": b_what,
            "tokens": a.trace.tokens(),
            "first": report.parted.map(|index| &report.points[index].name),
            "report": report,
        }))?;
    } else {
        let exact = [&a_args, &b_args].iter().all(|side| side.precision == Precision::Exact);
        print(&report, &a_what, &b_what, rows, (args.all, exact))?;
    }
    if report.parted.is_some() || report.not_finite > 0 { Err(ReportedDifferences.into()) } else { Ok(()) }
}

/// Loads a model and traces the tokens that `tokens` chooses.
#[allow(clippy::type_complexity, reason = "the tokens, and a trace that was read with them")]
fn run_side(
    args: &DiffArgs,
    settings: &EngineArgs,
    path: Option<&Path>,
    tokens: &mut dyn FnMut(&Activations, usize) -> Result<(Vec<u32>, Option<ActivationTrace>)>,
) -> Result<(DescribedRun, Option<ActivationTrace>)> {
    let checkpoint = model::open(path)?;
    let config = latent_graph::ModelConfig::from_checkpoint(&checkpoint)?;
    let layers = layers(args.layers.as_deref(), config.layers)?;
    let circuit = model::circuit_for(settings.circuit.as_deref(), &config)?;
    let points = Activations::of(&circuit, &config, &latent_graph::CheckpointTensors(&checkpoint))?;
    let (tokens, read) = tokens(&points, config.vocab_size)?;
    let mut settings = settings.clone();
    model::check_length(tokens.len(), config.context_length)?;
    settings.ctx_size.get_or_insert(tokens.len());
    let mut engine = model::load(&checkpoint, &settings, true)?;
    let trace = engine.trace(&points, layers, &tokens, &mut |_| !interrupt::asked())?;
    let what = describe(&engine, &settings, &checkpoint.display_name());
    Ok((DescribedRun { points, trace, numerics: Some(Numerics::of(&engine)), what }, read))
}

/// `model.gguf, mla auto, precision exact, avx512, f32 cache, 2 threads`. For a GPU, its name
/// replaces instruction set and threads.
fn describe(engine: &Engine, settings: &EngineArgs, file: &str) -> String {
    let s = engine.summary();
    let form = if settings.expanded_cache { " of expanded keys" } else { "" };
    let circuit =
        settings.circuit.as_ref().map_or_else(String::new, |p| format!(", circuit {}", p.display()));
    let (runs, threads) = match s.backend {
        "cpu" => (s.tier.to_string(), format!(", {}", s.placement)),
        backend => (backend.to_owned(), String::new()),
    };
    format!(
        "{file}, mla {}, precision {}, {runs}, {} cache{form}{threads}{circuit}",
        settings.mla, settings.precision, s.cache
    )
}

/// Applies one setting, `key=value`, to a side.
pub(super) fn set(settings: &mut EngineArgs, word: &str, flag: &str) -> Result<()> {
    let wrong = |problem: String| -> anyhow::Error { UsageError(format!("{flag} {word}: {problem}")).into() };
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    match key {
        "mla" => settings.mla = value.parse().map_err(wrong)?,
        "precision" => settings.precision = value.parse().map_err(wrong)?,
        "isa" => settings.isa = isa(value).map_err(wrong)?,
        "cache-type" | "cache" => {
            let ty = value.parse().map_err(|_| wrong("expected f32, f16 or bf16".into()))?;
            settings.cache_type = Some(ty);
        }
        "expanded-cache" => match value {
            "" | "true" => settings.expanded_cache = true,
            "false" => settings.expanded_cache = false,
            _ => return Err(wrong("it takes no value".into())),
        },
        "device" => {
            latent_backends::check_name(value).map_err(|error| wrong(error.to_string()))?;
            settings.device = Some(value.to_owned());
        }
        "threads" => settings.threads = Some(crate::args::threads(value).map_err(wrong)?),
        "batch-size" | "chunk" => settings.batch_size = vec![crate::args::step_tokens(value).map_err(wrong)?],
        "ctx-size" | "ctx" => {
            settings.ctx_size = Some(crate::args::tokens(0)(value).map_err(wrong)?);
        }
        "circuit" => settings.circuit = Some(value.into()),
        _ => {
            return Err(wrong(
                "unknown setting; expected mla, precision, isa, cache-type, expanded-cache, device, threads, \
                 batch-size, ctx-size or circuit"
                    .into(),
            ));
        }
    }
    Ok(())
}

fn check_numbers(args: &DiffArgs) -> Result<()> {
    for (flag, value) in [("--tolerance", args.tolerance), ("--growth", args.growth)] {
        if let Some(value) = value.filter(|v| !v.is_finite() || *v < 0.0) {
            return Err(UsageError(format!("{flag} {value}: expected a number of at least 0")).into());
        }
    }
    Ok(())
}

/// `all`: list every activation. `exact`: both sides have exact precision.
fn print(report: &ComparisonReport, a: &str, b: &str, rows: usize, (all, exact): (bool, bool)) -> Result<()> {
    for (name, what) in [("A", a), ("B", b)] {
        wrapped(&format!("{name}: {what}"), 3)?;
    }
    output::line(&format!(
        "{rows} tokens; tolerance {:.0e} per row, or {} times the error of the inputs",
        report.tolerance.level, report.tolerance.growth
    ))?;
    output::line("")?;
    output::line(&format!(
        "{:<24}{:>9}{:>9}{:>9}{:>9}{:>11} {:<7}",
        "value", "max abs", "relative", "inputs'", "1-cosine", "row,column", ""
    ))?;
    for (index, point) in report.points.iter().enumerate() {
        if all || shown(report, index) {
            row(point)?;
        }
    }
    if !report.not_compared.is_empty() {
        output::line("")?;
        wrapped(&format!("not recorded by both sides: {}", summary(&report.not_compared)), 2)?;
    }
    output::line("")?;
    let undecided = not_finite(report)?;
    match report.parted {
        Some(index) => blame(report, index),
        None if undecided => Ok(()),
        None if report.points.iter().all(|point| point.verdict == PointVerdict::Same) => {
            output::line_in_colour("the two sides agree in every bit", Some(Colour::Green))
        }
        None => {
            // Not empty: `compare` refuses runs without a common activation.
            let last = &report.points[report.points.len() - 1];
            let flipped = report.points.iter().find(|point| point.other_experts.is_some_and(|rows| rows > 0));
            let why = flipped.map_or_else(String::new, |point| {
                let fewer = if exact { "" } else { ": --precision exact has fewer" };
                format!("; from {} on, near ties gave tokens other experts{fewer}", point.name)
            });
            let text = format!(
                "the two sides agree; the last value, {}, is off by {:.1e}{why}",
                last.name, last.distance.relative
            );
            in_colour(&text, 2, Some(Colour::Green))
        }
    }
}

/// Reports values that are not finite on both sides; returns whether there are any.
fn not_finite(report: &ComparisonReport) -> Result<bool> {
    let bad: Vec<&PointReport> = report.points.iter().filter(|p| p.distance.not_finite > 0).collect();
    let Some(first) = bad.first() else { return Ok(false) };
    let d = &first.distance;
    // With a difference above 0, the position is that of the largest difference, not of the first
    // NaN.
    let place =
        if d.max_abs == 0.0 { format!(" at row {}, column {}", d.row, d.column) } else { String::new() };
    let text = format!(
        "{} numbers of {} values are NaN or infinite on both sides, the first in {}{place}, so they cannot \
         be compared. `latent verify --weights` shows which weights are not finite.",
        report.not_finite,
        bad.len(),
        first.name
    );
    wrapped(&text, 2)?;
    Ok(true)
}

/// Whether a point is listed. Without --all, layers without differences show only their last
/// activation.
fn shown(report: &ComparisonReport, index: usize) -> bool {
    let point = &report.points[index];
    let same_layer = |other: &&PointReport| other.layer == point.layer;
    let last = report.points[index + 1..].first().is_none_or(|next| next.layer != point.layer);
    point.layer.is_none()
        || last
        || report.points.iter().filter(same_layer).any(|p| p.verdict == PointVerdict::Parts)
}

fn row(point: &PointReport) -> Result<()> {
    let d = &point.distance;
    let number = |value: f64| if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") };
    let at =
        if d.max_abs == 0.0 && d.not_finite == 0 { String::new() } else { format!("{},{}", d.row, d.column) };
    let text = format!(
        "{:<24}{:>9}{:>9}{:>9}{:>9}{at:>11} {}",
        point.name,
        number(d.max_abs),
        number(d.relative),
        number(point.inputs_error),
        // Rounding can make the cosine of equal vectors slightly larger than 1.
        number((1.0 - d.cosine).max(0.0)),
        point.verdict.word()
    );
    let colour = match point.verdict {
        PointVerdict::Same | PointVerdict::Within => None,
        PointVerdict::Follows => Some(Colour::Yellow),
        PointVerdict::NotFinite | PointVerdict::Parts => Some(Colour::Red),
    };
    output::line_in_colour(&text, colour)?;
    match point.other_experts {
        Some(flips) if flips > 0 => {
            output::line(&format!("  {flips} of {} rows chose other experts", d.rows))
        }
        _ => Ok(()),
    }
}

/// Reports the first difference with its operation and inputs.
fn blame(report: &ComparisonReport, index: usize) -> Result<()> {
    let point = &report.points[index];
    let d = &point.distance;
    let with =
        if point.tensors.is_empty() { String::new() } else { format!(" of {}", point.tensors.join(", ")) };
    let text = format!("The sides part at {}: {}{with}.", point.name, point.operation);
    in_colour(&text, 2, Some(Colour::Red))?;
    wrapped(
        &format!(
            "The worst row is off by {:.1e}, its inputs by {:.1e}; at row {}, column {} A has {} and B has {}.",
            d.worst_relative, point.inputs_error, d.row, d.column, d.numbers[0], d.numbers[1]
        ),
        2,
    )?;
    if !point.inputs.is_empty() {
        wrapped(&format!("It is computed from {}.", point.inputs.join(", ")), 2)?;
    }
    if !point.unseen.is_empty() {
        let tensors = point.unseen_tensors.join(", ");
        let tensors = if tensors.is_empty() { tensors } else { format!(" ({tensors})") };
        let names = point.unseen.join(", ");
        wrapped(&format!("Not compared, and therefore also suspect: {names}{tensors}."), 2)?;
    }
    for (side, made_by) in ["A", "B"].into_iter().zip(&point.made_by) {
        wrapped(&format!("{side}: {}", made_by.trim()), 3)?;
    }
    Ok(())
}

/// Names of activations, merged over layers: `attn_norm (3 layers), final_norm`.
fn summary(names: &[String]) -> String {
    let mut found: Vec<(&str, usize, bool)> = Vec::new();
    for name in names {
        let short = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let (word, in_layer) = short.map_or((name.as_str(), false), |(_, word)| (word, true));
        match found.iter_mut().find(|(other, _, layered)| *other == word && *layered == in_layer) {
            Some((_, count, _)) => *count += 1,
            None => found.push((word, 1, in_layer)),
        }
    }
    let text = |(word, count, layered): &(&str, usize, bool)| match (layered, count) {
        (false, _) => (*word).to_owned(),
        (true, 1) => format!("{word} (1 layer)"),
        (true, count) => format!("{word} ({count} layers)"),
    };
    found.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Prints a wrapped text. All lines but the first are indented.
fn wrapped(text: &str, indent: usize) -> Result<()> {
    in_colour(text, indent, None)
}

fn in_colour(text: &str, indent: usize, colour: Option<Colour>) -> Result<()> {
    let lines = output::wrapped("", indent, text, output::width());
    lines.iter().try_for_each(|line| output::line_in_colour(line, colour))
}
