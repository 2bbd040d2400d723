//! Drawings of `latent graph`: an HTML page, SVG, or their data. A config.json alone suffices.

mod file_info;

use super::device_runs::device_runs;
use super::layers::layers;
use super::partition::part;
use super::stage::{PrintedStage, bind};
use crate::args::{EngineArgs, GraphArgs, GraphFormat as Form, ModelArgs};
use crate::model::{self, ModelInfo};
use crate::{output, target};
use anyhow::{Context, Result};
use latent_formats::{input_file, limits, output_file};
use latent_graph::CheckpointTensors;
use latent_graph::passes::{BatchBucket, CacheForm};
use latent_viz::{Drawing, InitialView, Options, PageOptions, bucket_key};
use serde_json::Value;
use std::path::Path;

pub(super) fn run(args: &GraphArgs, stage: PrintedStage, path: Option<&Path>) -> Result<()> {
    if let Some(out) = &args.html {
        target::check(out, args.model.engine.force)?;
    }
    // Both models stay open until the page is written: `output_file` then refuses to overwrite one
    // of them.
    let model = ModelInfo::new(model::outline(path)?, args.model.engine.circuit.as_deref())?;
    let drawing = draw(args, &model, path)?;
    let formulation = formulation(&args.model.engine);
    let bucket = bucket_key(BatchBucket::of(args.rows()));
    if let Some(out) = &args.html {
        let profile = args.profile.as_deref().map(|path| read_json(path, &PROFILE)).transpose()?;
        let weights = args.weights.as_deref().map(|path| read_json(path, &WEIGHTS)).transpose()?;
        let parity = args.parity.as_deref().map(|path| read_json(path, &PARITY)).transpose()?;
        let file_info = Some(file_info::file_info(&model.outline));
        // The other model keeps its own circuit, so that a user's circuit can be compared with the
        // original.
        let other = |path| ModelInfo::new(model::outline(Some(path))?, None);
        let other = args.against.as_deref().map(other).transpose()?;
        let against = other.as_ref().map(|other| draw(args, other, args.against.as_deref())).transpose()?;
        let wanted = InitialView {
            stage: stage.name().into(),
            formulation: formulation.into(),
            bucket: bucket.into(),
        };
        let page = drawing.page(&PageOptions {
            wanted,
            profile,
            weights,
            parity,
            file_info,
            against: against.as_ref(),
        })?;
        output_file::write(out, page.as_bytes())?;
        output::note(&format!("{}: {}", out.display(), latent_types::format_bytes(page.len() as u64)));
        return Ok(());
    }
    if args.format == Form::Data {
        return output::json(&serde_json::to_value(&drawing)?);
    }
    let view = drawing
        .view(stage.name(), formulation, bucket)
        .with_context(|| format!("no view of {} {formulation} {bucket}", stage.name()))?;
    output::multiline(&drawing.svg(view))
}

/// The page of a model that `latent serve` runs: a decode step.
pub(super) fn page_of(model_args: &ModelArgs) -> Result<String> {
    let args = GraphArgs {
        model: model_args.clone(),
        words: Vec::new(),
        after: None,
        rows: None,
        format: Form::Data,
        json: false,
        layers: None,
        rank: 0,
        html: None,
        profile: None,
        weights: None,
        parity: None,
        against: None,
        emit_c: None,
    };
    let model =
        ModelInfo::new(model::outline(model_args.model.as_deref())?, model_args.engine.circuit.as_deref())?;
    let drawing = draw(&args, &model, args.model.model.as_deref())?;
    let wanted = InitialView {
        stage: PrintedStage::Plan.name().into(),
        formulation: formulation(&model_args.engine).into(),
        bucket: bucket_key(BatchBucket::of(1)).into(),
    };
    let file_info = Some(file_info::file_info(&model.outline));
    Ok(drawing.page(&PageOptions {
        wanted,
        profile: None,
        weights: None,
        parity: None,
        file_info,
        against: None,
    })?)
}

fn formulation(args: &EngineArgs) -> &'static str {
    match args.form() {
        CacheForm::Expanded => "expanded",
        CacheForm::Latent => args.mla.name(),
    }
}

fn draw(args: &GraphArgs, model: &ModelInfo, path: Option<&Path>) -> Result<Drawing> {
    let part = part(args, &model.config)?;
    let config = part.as_ref().unwrap_or(&model.config);
    let options = Options {
        bind: bind(args)?,
        max_batch_tokens: args.model.engine.max_batch_tokens().max(args.rows()),
        layers: layers(args.layers.as_deref(), config.layers)?,
        mtp: args.model.engine.draft.has_mtp(),
        assumed: model.promised.as_ref().map(|promised| promised.matrix_type().name()),
        kernels: args.format != Form::Svg,
    };
    let target = args.model.engine.options().target(&*args.model.engine.hollow_backend()?);
    let rows = [BatchBucket::Decode, BatchBucket::SmallBatch, BatchBucket::Prefill];
    let rows = rows.map(|bucket| bucket.max_rows(options.max_batch_tokens));
    let runs = device_runs(&args.model.engine, (&model.outline, path), &rows)?;
    let adapted = model::adapted(path, &args.model.engine)?;
    let adapted = adapted.as_ref().map(CheckpointTensors);
    let tensors = adapted.as_ref().map_or(model.tensors(), |tensors| tensors);
    Ok(Drawing::on_device(&model.circuit, config, tensors, &target, (&options, &runs))?)
}

/// A kind of JSON file that the page shows.
struct JsonKind {
    /// What a file of another kind lacks.
    lacks: &'static str,
    /// The command that writes it.
    command: &'static str,
    /// Checks the fields that the page reads.
    check: fn(&Value) -> bool,
}

const PROFILE: JsonKind = JsonKind {
    lacks: "no profile (it has no limits and steps)",
    command: "latent profile --json",
    check: |value| value["limits"]["read_bandwidth"].is_number() && value["steps"].is_array(),
};

const WEIGHTS: JsonKind = JsonKind {
    lacks: "no statistics of weights (it has no tensors with an rms)",
    command: "latent verify --weights --json",
    check: |value| {
        let statistics = |tensor: &Value| {
            tensor["name"].is_string() && tensor["type"].is_string() && tensor.get("rms").is_some()
        };
        value["tensors"].as_array().is_some_and(|tensors| tensors.iter().all(statistics))
    },
};

const PARITY: JsonKind = JsonKind {
    lacks: "no comparison of two runs (it has no report with points)",
    command: "latent diff --json",
    check: |value| {
        let point = |point: &Value| point["name"].is_string() && point["verdict"].is_string();
        let points = value["report"]["points"].as_array();
        value["a"].is_string() && points.is_some_and(|points| points.iter().all(point))
    },
};

fn read_json(path: &Path, kind: &JsonKind) -> Result<Value> {
    let name = path.display();
    let text = input_file::read(path, limits::MAX_PROFILE_BYTES)?;
    let value: Value =
        serde_json::from_slice(&text).map_err(|error| anyhow::anyhow!("{name}: not JSON: {error}"))?;
    if (kind.check)(&value) {
        return Ok(value);
    }
    Err(anyhow::anyhow!("{name}: {}: make one with `{}`", kind.lacks, kind.command))
}
