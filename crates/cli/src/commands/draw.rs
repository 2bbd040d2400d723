//! Drawings of `latent graph`: a page, SVG, or their data. The model may be a config.json alone.

use super::graph::{Stage, bind, layers};
use crate::args::{Drawing as Form, GraphArgs};
use crate::exit::Usage;
use crate::{model, output};
use anyhow::{Context, Result};
use base::TensorType;
use engine::cpu;
use graph::circuit::{DeclaredTensors, Naming, TensorIndex};
use graph::contract::JsonKeys;
use graph::draw::{Drawing, Options, PageOptions, Wanted};
use graph::passes::{CacheForm, RowClass};
use graph::{CheckpointTensors, ConfigTensors, Contract};
use std::fs;
use std::path::Path;

/// The longest config.json that is read: real ones have a few kilobytes.
const LONGEST_CONFIG: u64 = 8 << 20;

pub(super) fn run(args: &GraphArgs, stage: Stage, path: Option<&Path>) -> Result<()> {
    let drawing = draw(args, path)?;
    let formulation = match args.model.form() {
        CacheForm::Expanded => "expanded",
        CacheForm::Latent => args.model.mla.name(),
    };
    let class = match RowClass::of(args.rows) {
        RowClass::One => "one",
        RowClass::Few => "few",
        RowClass::Many => "many",
    };
    if let Some(out) = &args.html {
        let profile = args.profile.as_deref().map(read_profile).transpose()?;
        let against = args.against.as_deref().map(|path| draw(args, Some(path))).transpose()?;
        let wanted =
            Wanted { stage: stage.name().into(), formulation: formulation.into(), class: class.into() };
        let page = drawing.page(&PageOptions { wanted, profile, against: against.as_ref() })?;
        fs::write(out, &page).with_context(|| format!("writing {}", out.display()))?;
        eprintln!("{}: {}", out.display(), engine::memory::readable(page.len() as u64));
        return Ok(());
    }
    if args.format == Form::DrawingJson {
        return output::json(&serde_json::to_value(&drawing)?);
    }
    let view = drawing
        .view(stage.name(), formulation, class)
        .with_context(|| format!("no view of {} {formulation} {class}", stage.name()))?;
    output::now(&drawing.svg(view))
}

fn draw(args: &GraphArgs, path: Option<&Path>) -> Result<Drawing> {
    let bind = bind(args)?;
    let make = |contract: &Contract, tensors: &dyn TensorIndex, assumed| -> Result<Drawing> {
        let options = Options {
            bind,
            largest: usize::from(args.model.chunk).max(args.rows),
            layers: layers(args.layers.as_deref(), contract.layers)?,
            assumed,
            kernels: args.format != Form::Svg,
        };
        Ok(Drawing::make(contract, tensors, &cpu::kernel_contracts(), &options)?)
    };
    match path {
        Some(path) if path.is_file() && path.extension().is_some_and(|end| end == "json") => {
            let file = path.display().to_string();
            let object = read_config(path)?;
            let keys = JsonKeys { file: &file, object: &object };
            let promised = ConfigTensors::new(&keys);
            let contract = Contract::from_config(&keys, &promised)?;
            let format = promised.format();
            let tensors = Promised { file: file.clone(), tensors: declared(&contract, format)? };
            make(&contract, &tensors, Some(format.name()))
        }
        path => {
            let checkpoint = model::open(path)?;
            make(&Contract::from_checkpoint(&checkpoint)?, &CheckpointTensors(&checkpoint), None)
        }
    }
}

fn declared(contract: &Contract, format: TensorType) -> Result<DeclaredTensors> {
    Ok(DeclaredTensors::new(contract, Naming::HuggingFace, format)?)
}

/// Declared tensors under the name of the file that promises them.
struct Promised {
    file: String,
    tensors: DeclaredTensors,
}

impl TensorIndex for Promised {
    fn naming(&self) -> Naming {
        self.tensors.naming()
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.tensors.find(name)
    }

    fn file(&self) -> String {
        self.file.clone()
    }
}

fn read_config(path: &Path) -> Result<serde_json::Map<String, serde_json::Value>> {
    let name = path.display();
    let length = fs::metadata(path).with_context(|| format!("reading {name}"))?.len();
    if length > LONGEST_CONFIG {
        return Err(Usage(format!("{name}: {length} bytes is too long for a config.json")).into());
    }
    let text = fs::read(path).with_context(|| format!("reading {name}"))?;
    match serde_json::from_slice(&text) {
        Ok(serde_json::Value::Object(object)) => Ok(object),
        Ok(_) => Err(anyhow::anyhow!("{name}: a config.json is a JSON object, this is none")),
        Err(error) => Err(anyhow::anyhow!("{name}: not JSON: {error}")),
    }
}

/// A profile, as far as the page needs it to be one.
fn read_profile(path: &Path) -> Result<serde_json::Value> {
    let name = path.display();
    let text = fs::read(path).with_context(|| format!("reading {name}"))?;
    let profile: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| anyhow::anyhow!("{name}: not JSON: {error}"))?;
    let is_profile = profile["limits"]["read_bandwidth"].is_number() && profile["steps"].is_array();
    if is_profile {
        return Ok(profile);
    }
    Err(anyhow::anyhow!(
        "{name}: no profile (it has no limits and steps): make one with `latent profile --json`"
    ))
}
