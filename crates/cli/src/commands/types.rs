//! Tensor types for `latent quantize` and `latent convert`: their options and reports.

use crate::args::TypeArgs;
use crate::model::ModelInfo;
use crate::progress::LateBar;
use crate::{interrupt, output};
use anyhow::{Context, Result};
use latent_backend::{MemoryEstimate, WeightSource};
use latent_convert::quantize::{
    AssignedTensor, Assignment, Importances, Mix, Options, QuantizedModel, SizeFit, TypeMeasurements,
    WrittenTensor,
};
use latent_engine::{EngineOptions, memory};
use latent_formats::{Outline, output_file};
use latent_graph::ir::{AttentionPath, StepWorkload};
use latent_threads::{Placement, Topology};
use latent_types::{TensorType, format_bytes};
use serde_json::{Value, json};

/// The default mix, with which a search begins and is compared.
pub(super) const DEFAULT_MIX: &str = "Q4_K_M";

impl TypeArgs {
    pub(super) fn importances(&self) -> Result<Option<Importances>> {
        Ok(self.imatrix.as_deref().map(Importances::read).transpose()?)
    }

    pub(super) fn options(&self, mix: Mix) -> Options {
        Options {
            mix,
            pure: self.pure,
            tensor_types: self.tensor_type.clone(),
            output: self.output_tensor_type,
            embedding: self.token_embedding_type,
            allow_requantize: self.allow_requantize,
        }
    }

    pub(super) fn threads(&self) -> usize {
        let usual = || latent_threads::threads_for(&Topology::detect(), latent_threads::parallelism());
        self.threads.map_or_else(usual, usize::from)
    }
}

/// Measures the error of each type on rows of every tensor.
pub(super) fn measured(assignment: &Assignment<'_>, args: &TypeArgs) -> Result<TypeMeasurements> {
    let bar = LateBar::new(true, "measuring", assignment.tensors().len());
    Ok(assignment.measure(args.threads(), &|done, total| {
        bar.set(done as u64, total as u64);
        !interrupt::asked()
    })?)
}

/// Chooses types for the requested size.
pub(super) fn sized(assignment: &mut Assignment<'_>, args: &TypeArgs) -> Result<Option<Costs>> {
    let Some(target) = args.target_size else { return Ok(None) };
    let measured = measured(assignment, args)?;
    Ok(Some(Costs { fit: assignment.fit(&measured, target)?, kl: None }))
}

/// The cost of the chosen types.
pub(super) struct Costs {
    pub(super) fit: SizeFit,
    /// Nats.
    pub(super) kl: Option<f64>,
}

fn costs_text(Costs { fit, kl }: &Costs, mix: Mix) -> String {
    let percent = |error: f64| 100.0 * error.sqrt();
    let expected = fit
        .expected_kl
        .map(|(kl, of_mix)| format!("expected KL divergence {kl:.5} nats ({}: {of_mix:.5}), ", mix.name()));
    let kl = kl.map(|kl| format!("KL divergence {kl:.5} nats, ")).or(expected).unwrap_or_default();
    format!(
        "chosen   for {}: {kl}error {:.3} % (root of the mean over tensors of squared errors); {} has {:.3} % at {}",
        format_bytes(fit.bytes),
        percent(fit.error),
        mix.name(),
        percent(fit.error_of_mix),
        format_bytes(fit.bytes_of_mix)
    )
}

fn of_costs(Costs { fit, kl }: &Costs) -> Value {
    json!({
        "bytes": fit.bytes,
        "kl_divergence": kl,
        "expected_kl_divergence": fit.expected_kl.map(|(kl, _)| kl),
        "mix_expected_kl_divergence": fit.expected_kl.map(|(_, of_mix)| of_mix),
        "mean_squared_error": fit.error,
        "mix_bytes": fit.bytes_of_mix,
        "mix_mean_squared_error": fit.error_of_mix,
    })
}

fn shape(tensor: &AssignedTensor) -> String {
    tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("×")
}

fn types(tensor: &AssignedTensor) -> String {
    // A mix may ask for a type whose block does not divide the row. The assignment then falls back
    // to another one.
    let note = tensor
        .meant
        .map(|meant| format!(" (row length is not a multiple of {meant} blocks)"))
        .unwrap_or_default();
    match tensor.from == tensor.to {
        true => format!("{:>8}  as it is{note}", tensor.from),
        false => format!("{:>8} → {:<8}{note}", tensor.from, tensor.to),
    }
}

fn row(tensor: &AssignedTensor, error: &str) -> String {
    format!(
        "{:<44} {:>20} {:>10} {error:>9}  {}",
        tensor.name,
        shape(tensor),
        format_bytes(tensor.bytes_to),
        types(tensor)
    )
}

fn bits(bytes: u64, weights: u64) -> f64 {
    bytes as f64 * 8.0 / weights.max(1) as f64
}

fn weights<'t>(tensors: impl Iterator<Item = &'t AssignedTensor>) -> u64 {
    tensors.map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum()
}

/// The first file and the number of others.
pub(super) fn names(written: &QuantizedModel) -> String {
    let first = written.files.first().map(|file| file.display().to_string()).unwrap_or_default();
    match written.files.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

/// A line per tensor and a summary.
pub(super) fn table(written: &QuantizedModel, fit: Option<&Costs>, mix: Mix) -> String {
    let heading = format!("{:<44} {:>20} {:>10} {:>9}  types", "tensor", "shape", "bytes", "error");
    let percent = |tensor: &WrittenTensor| match tensor.error {
        // The tensor keeps its type: nothing is rounded.
        None => "–".to_owned(),
        Some(error) => format!("{:.3} %{}", 100.0 * error, if tensor.weighted { "*" } else { " " }),
    };
    let mut lines = vec![heading];
    lines.extend(written.tensors.iter().map(|tensor| row(&tensor.assigned, &percent(tensor))));
    if written.tensors.iter().any(|tensor| tensor.weighted) {
        lines.push("* weighted by importances".into());
    }
    lines.extend(rounded(written));
    let count = weights(written.tensors.iter().map(|tensor| &tensor.assigned));
    let resumed = match written.resumed {
        0 => String::new(),
        bytes => format!(", {} of them by an earlier run", format_bytes(bytes)),
    };
    lines.extend(fit.map(|fit| costs_text(fit, mix)));
    let bits = bits(written.bytes, count);
    let bytes = format_bytes(written.bytes);
    lines.push(format!("{}: {bytes}{resumed}, {bits:.2} bits per weight", names(written)));
    lines.push(String::new());
    lines.join("\n")
}

/// The number of matrices rounded by GPTQ, if any.
fn rounded(written: &QuantizedModel) -> Option<String> {
    let all = || written.tensors.iter().filter_map(|tensor| tensor.rounded);
    all().next()?;
    let (rounded, searched): (usize, usize) =
        (all().map(|one| one.rounded).sum(), all().map(|one| one.searched).sum());
    let searched = match searched {
        0 => String::new(),
        few => format!("; {few} had too few rows and were quantized with importances"),
    };
    Some(format!("GPTQ     {rounded} matrices of {} tensors{searched}", all().count()))
}

fn of_tensor(tensor: &AssignedTensor) -> Value {
    json!({
        "name": tensor.name,
        "shape": tensor.shape,
        "from": tensor.from.name(),
        "to": tensor.to.name(),
        "meant": tensor.meant.map(TensorType::name),
        "bytes": tensor.bytes_to,
    })
}

pub(super) fn report(written: &QuantizedModel, fit: Option<&Costs>, notes: &[String]) -> Value {
    let tensors = written.tensors.iter().map(|tensor| {
        let mut value = of_tensor(&tensor.assigned);
        value["error"] = json!(tensor.error);
        value["weighted"] = json!(tensor.weighted);
        if let Some(rounded) = tensor.rounded {
            value["gptq"] = json!({ "rounded": rounded.rounded, "searched": rounded.searched });
        }
        value
    });
    json!({
        "file": written.files.first().map(|file| file.display().to_string()),
        "files": written.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        "bytes": written.bytes,
        "resumed_bytes": written.resumed,
        "fit": fit.map(of_costs),
        "bits_per_weight": bits(written.bytes, weights(written.tensors.iter().map(|tensor| &tensor.assigned))),
        "notes": notes,
        "tensors": tensors.collect::<Vec<_>>(),
    })
}

/// Memory and bandwidth needed to run a model.
struct MemoryNeeds {
    context: usize,
    memory: MemoryEstimate,
    /// Bytes that one token reads.
    token_bytes: f64,
    /// Bytes per second that the machine reads.
    bandwidth: f64,
}

/// Prints types, size, memory and speed of the file that would be written.
pub(super) fn dry_run(
    assignment: &Assignment<'_>,
    fit: Option<&Costs>,
    args: &TypeArgs,
    notes: &[String],
) -> Result<()> {
    let bytes = assignment.bytes()?;
    let count = weights(assignment.tensors().iter());
    // A model that the engine does not support can still be quantized.
    let needs = needs(assignment, args);
    if args.json {
        let needs = needs.map(|needs| {
            json!({
                "context": needs.context,
                "memory_bytes": needs.memory.total(),
                "token_bytes": needs.token_bytes,
                "read_bandwidth": needs.bandwidth,
                "most_tokens_per_s": needs.bandwidth / needs.token_bytes,
            })
        });
        return output::json(&json!({
            "mix": assignment.mix().name(),
            "bytes": bytes,
            "bits_per_weight": bits(bytes, count),
            "fit": fit.map(of_costs),
            "run": needs.as_ref().ok(),
            "run_error": needs.as_ref().err().map(ToString::to_string),
            "notes": notes,
            "tensors": assignment.tensors().iter().map(of_tensor).collect::<Vec<_>>(),
        }));
    }
    let mut lines: Vec<String> = assignment.tensors().iter().map(|tensor| row(tensor, "")).collect();
    lines.extend(fit.map(|fit| costs_text(fit, assignment.mix())));
    lines.push(format!("size     {}, {:.2} bits per weight", format_bytes(bytes), bits(bytes, count)));
    match needs {
        Ok(needs) => {
            let total = format_bytes(needs.memory.total());
            let here =
                memory::available().map(|here| format!(" of {} ({})", format_bytes(here.bytes), here.limit));
            lines.push(format!(
                "memory   {total}{} with a context of {} tokens",
                here.unwrap_or_default(),
                needs.context
            ));
            let (rate, bandwidth) = (needs.bandwidth / needs.token_bytes, needs.bandwidth / 1e9);
            lines.push(format!(
                "speed    at most {rate:.1} tokens/s here: a token reads {}, the machine {bandwidth:.1} GB/s",
                format_bytes(needs.token_bytes as u64)
            ));
        }
        Err(error) => lines.push(format!("memory   unknown: {error}")),
    }
    lines.push(String::new());
    output::multiline(&lines.join("\n"))
}

/// Maximum context for which memory is estimated.
const MAX_CONTEXT: usize = 4096;

fn needs(assignment: &Assignment<'_>, args: &TypeArgs) -> Result<MemoryNeeds> {
    let folder = output_file::temporary_folder(&std::env::temp_dir())?;
    let header = folder.path().join("header.gguf");
    // The header alone is written: the estimate needs names, types and shapes, but no data.
    assignment.write_header(&header)?;
    let model = ModelInfo::new(Outline::open(&header)?, None)?;
    let placement = Placement::anywhere(args.threads());
    let options = EngineOptions { placement: Some(placement.clone()), ..EngineOptions::default() };
    let backend = latent_backends::cpu();
    let resolved = options.resolve(&*backend, &model.config)?;
    let stages = resolved.stages(&model.config, model.tensors())?;
    let context = model.config.context_length.min(MAX_CONTEXT);
    let weights = resolved.weight_bytes(&stages, WeightSource::Declared(model.tensors()));
    let memory = resolved.estimate(&model.config, &stages, weights, context);
    let cache = resolved.options.stages.bind.cache;
    let mut token_bytes = 0.0;
    for ir in stages.iter().map(|stage| &stage.plan(1).ir) {
        let step = StepWorkload {
            rows: 1,
            sequences: 1,
            // The mean over an answer that fills the context. Decode attends in absorbed form.
            past_len: context / 2,
            cache,
            path: AttentionPath::Absorbed,
        };
        let costs = ir.nodes.iter().map(|node| node.cost(ir, step));
        token_bytes += costs.map(|cost| cost.weight_bytes + cost.cache_bytes).sum::<f64>();
    }
    let limits = latent_backends::limits(&*backend, &placement, resolved.options.stages.bind.tier);
    let bandwidth = limits.context("measuring the machine's limits")?.read_bandwidth;
    Ok(MemoryNeeds { context, memory, token_bytes, bandwidth })
}
