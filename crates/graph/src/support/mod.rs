//! Support reports: whether Latent runs a model, the kernels that its operations bind to, and
//! everything that is missing.
//!
//! Unlike loading, a report does not stop at the first error. It fills in a plausible value and
//! reads on. It works on the [`Outline`] of a model: a whole file, a header whose data are missing,
//! or a config.json alone.

mod closest;
mod draft;
mod fill_missing;
mod machine;
mod missing;
mod operations;

pub use closest::Similarity;
pub use draft::{draft_circuit, open_notes};
use machine::KnownTensors;
pub use machine::Machine;
pub use missing::{MissingItem, MissingKind};
pub use operations::{KernelChoice, OperationKernels};

use crate::audit;
use crate::circuit::{Circuit, ConfigVars, DeclaredTensors, LayerRun, TensorNaming};
use crate::config::{self, MetadataKeys, MetadataValue, ModelConfig, OutlineFile};
use crate::error::GraphError;
use crate::ir::{Ir, ModelSpan};
use crate::tensors::naming_of;
use latent_formats::{CheckpointSource, Outline, OutlineData};
use latent_types::TensorType;
use serde::Serialize;
use std::collections::BTreeMap;

/// The support report of a model. Its JSON is the `--json` of `latent inspect --contract`.
#[derive(Clone, Debug, Serialize)]
pub struct SupportReport {
    /// The file or folder.
    pub file: String,
    /// The available data of the model.
    pub data: OutlineData,
    /// The architecture by the file.
    pub architecture: String,
    /// Whether Latent runs it on this machine: nothing is missing.
    pub supported: bool,
    /// The hyper-parameters; `None` if they could not be read without guessing.
    pub config: Option<ModelConfig>,
    /// The blocks of its layers; empty without hyper-parameters.
    pub layers: Vec<LayerRun>,
    /// Operations of a step with their kernels. For an unknown architecture, those of the closest
    /// circuit.
    pub operations: Vec<OperationKernels>,
    /// Everything that prevents the model from running.
    pub missing: Vec<MissingItem>,
    /// The reason why its files cannot be opened; `None` if they can, or if only data are missing.
    pub refused: Option<String>,
    /// Warnings about keys of config.json that other data in the folder overrides.
    pub warnings: Vec<String>,
    /// Known circuits by similarity, best first; empty if the architecture is known.
    pub closest: Vec<Similarity>,
    /// Keys of an unknown architecture that no reader uses. They may require operations.
    pub unread: Vec<String>,
    /// Assumptions that replace missing data.
    pub assumed: Vec<String>,
}

/// Reports whether a model is supported.
///
/// # Errors
/// Only internal errors: a circuit that contradicts itself.
pub fn support_report(outline: &Outline, machine: Machine<'_>) -> Result<SupportReport, GraphError> {
    let file = OutlineFile(outline);
    let naming = naming_of(outline.source());
    let (read, closest) = read(outline, naming);
    // With guessed values, shapes and unused tensors would be reported wrongly.
    let guessed = !closest.is_empty() || read.filled;
    let mut missing = read.missing;
    let mut assumed = Vec::new();
    let refusal = outline.refusal();
    if let Some(refusal) = refusal.filter(|refusal| refusal.is_unsupported()) {
        missing.push(MissingItem::new(MissingKind::Format, "weights", refusal.to_string()));
    }
    let (mut operations, mut layers) = (Vec::new(), Vec::new());
    if let Some(config) = &read.config {
        let circuit = match machine.circuit {
            Some(circuit) => circuit,
            None => Circuit::named(&config.circuit)?,
        };
        let ty = matrix_type(outline, &file, &mut missing, &mut assumed);
        let declared = DeclaredTensors::of(circuit, config, naming, ty)?;
        let known = KnownTensors { outline, declared: &declared };
        if outline.names_all_tensors() {
            tensors(circuit, config, &known, guessed, &mut missing)?;
        }
        if outline.names_all_tensors() && !guessed {
            unread(circuit, config, &known, &mut missing)?;
        }
        operations = operations::list(circuit, config, &known, machine, &mut missing)?;
        if !guessed {
            layers = circuit.layer_runs(config)?;
        }
    }
    let mut sorted: Vec<MissingItem> = Vec::new();
    // Stable: within a kind, items keep the order in which they were found.
    missing.sort_by_key(|m| m.kind);
    missing.into_iter().for_each(|m| {
        if !sorted.contains(&m) {
            sorted.push(m)
        }
    });
    Ok(SupportReport {
        file: outline.display_name(),
        data: outline.data(),
        architecture: read.architecture,
        supported: sorted.is_empty() && refusal.is_none(),
        config: read.config.filter(|_| !guessed),
        layers,
        operations,
        missing: sorted,
        refused: refusal.map(ToString::to_string),
        warnings: config::warnings(&file),
        unread: if closest.is_empty() { Vec::new() } else { read.unread },
        closest,
        assumed,
    })
}

/// Reads the config of an outline. An unknown architecture is read as the most similar known one.
fn read(outline: &Outline, naming: TensorNaming) -> (fill_missing::RecoveredConfig, Vec<Similarity>) {
    let mut read = fill_missing::read_as(outline, naming, None);
    if !read.unsupported {
        return (read, Vec::new());
    }
    let closest = closest::rank(outline, naming, &read.architecture);
    if let Some(best) = closest.first() {
        let like = fill_missing::read_as(outline, naming, Some(&best.name));
        // The unknown architecture itself is the first obstacle; those of the similar one follow.
        let missing = std::mem::take(&mut read.missing);
        read = fill_missing::RecoveredConfig { missing: [missing, like.missing].concat(), ..like };
    }
    (read, closest)
}

/// The tensors that a config.json implies; `None` if the outline lists tensors itself.
pub fn implied_tensors(
    outline: &Outline,
    circuit: &Circuit,
    config: &ModelConfig,
) -> Result<Option<DeclaredTensors>, GraphError> {
    if outline.data() != OutlineData::Config {
        return Ok(None);
    }
    let ty = matrix_type(outline, &OutlineFile(outline), &mut Vec::new(), &mut Vec::new());
    let declared = DeclaredTensors::of(circuit, config, naming_of(outline.source()), ty)?;
    Ok(Some(declared.named(outline.display_name())))
}

/// The type of most matrices by bytes, or the type that config.json states.
fn matrix_type(
    outline: &Outline,
    keys: &dyn MetadataKeys,
    missing: &mut Vec<MissingItem>,
    assumed: &mut Vec<String>,
) -> TensorType {
    let mut bytes: BTreeMap<TensorType, u64> = BTreeMap::new();
    for tensor in outline.tensors().iter().filter(|t| t.shape.len() > 1) {
        *bytes.entry(tensor.ty).or_default() += tensor.bytes;
    }
    // By bytes, so that the type of the experts counts in MoE models.
    if let Some((ty, _)) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes) {
        return ty;
    }
    let text = |key: &str| match keys.field(key).or_else(|| keys.field(&format!("text_config.{key}"))) {
        Some(MetadataValue::Text(text)) => Some(text),
        _ => None,
    };
    let announced = match outline.source() {
        CheckpointSource::HuggingFace(source) => latent_formats::announced_type(source),
        CheckpointSource::Gguf(_) => Ok(None),
    };
    // Transformers renamed `torch_dtype` to `dtype`; files have either.
    let dtype = text("dtype").or_else(|| text("torch_dtype"));
    let plain = match dtype.as_deref() {
        Some("float32") => TensorType::F32,
        Some("float16") => TensorType::F16,
        _ => TensorType::BF16,
    };
    let ty = announced.map(|ty| ty.unwrap_or(plain)).unwrap_or_else(|problem| {
        if outline.refusal().is_none() {
            missing.push(MissingItem::new(MissingKind::Format, "quantization_config.quant_method", problem));
        }
        plain
    });
    assumed.push(format!(
        "the file lists no tensors: assuming {ty} matrices with the shapes that the keys imply"
    ));
    ty
}

/// Checks every slot of the circuit against the file. Equal problems of several layers are
/// combined.
fn tensors(
    circuit: &Circuit,
    config: &ModelConfig,
    known: &KnownTensors<'_>,
    guessed: bool,
    missing: &mut Vec<MissingItem>,
) -> Result<(), GraphError> {
    let file = known.outline;
    // Problems of slots, with the number of layers that have them.
    let mut problems: BTreeMap<(String, String), usize> = BTreeMap::new();
    let of_model = circuit.model_blocks().map(|(block, _)| (block.to_owned(), None));
    let mut blocks: Vec<(String, Option<usize>)> = of_model.collect();
    for layer in 0..config.layers {
        let spec = circuit.layer_spec(config, layer)?;
        blocks.extend(spec.blocks().map(|block| (block.to_owned(), Some(layer))));
    }
    for (block, layer) in &blocks {
        let vars = ConfigVars::of(config, *layer);
        for slot in circuit.blocks.get(block).into_iter().flat_map(|block| block.weights.keys()) {
            // Each error is recorded instead of returned, so that one report lists all missing
            // tensors.
            let Err(error) = circuit.fill((block, slot), *layer, &vars, file) else { continue };
            let problem = match error {
                GraphError::MissingTensor { tensor, .. } => {
                    (pattern(&tensor, *layer), "it is not in the file".to_owned())
                }
                // Shapes mean nothing if keys were guessed.
                GraphError::Shape { .. } if guessed => continue,
                GraphError::Shape { tensor, found, expected, .. } => (
                    pattern(&tensor, *layer),
                    format!("its shape is {found:?}, the keys require {expected:?}"),
                ),
                GraphError::MixedTypes { tensor, ty, first, .. } => {
                    (pattern(&tensor, *layer), format!("experts are stored as {first} and as {ty}"))
                }
                other => return Err(other),
            };
            *problems.entry(problem).or_default() += 1;
        }
    }
    for ((tensor, problem), layers) in problems {
        let problem = if layers > 1 { format!("{problem} ({layers} layers)") } else { problem };
        missing.push(MissingItem::new(MissingKind::Tensor, tensor, problem));
    }
    Ok(())
}

/// Reports tensors of the file that no operation reads. They may require operations. Equal ones of
/// several layers are combined.
fn unread(
    circuit: &Circuit,
    config: &ModelConfig,
    known: &KnownTensors<'_>,
    missing: &mut Vec<MissingItem>,
) -> Result<(), GraphError> {
    let stages = ModelSpan::of_stages(circuit, config, false)?.into_iter();
    // `known` declares missing tensors too, so that the IR can be built for an incomplete file.
    let stages = stages.map(|(_, span)| Ir::build_with(circuit, config, &span, known));
    let stages: Vec<Ir> = stages.collect::<Result<_, _>>()?;
    let irs: Vec<&Ir> = stages.iter().collect();
    let (_, names) = audit::unused(circuit, config, known.outline, &irs);
    let mut patterns: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        let layer = name.split('.').find_map(|part| part.parse().ok());
        *patterns.entry(pattern(&name, layer)).or_default() += 1;
    }
    for (name, layers) in patterns {
        let times = if layers > 1 { format!(" ({layers} layers)") } else { String::new() };
        missing.push(MissingItem::new(MissingKind::Unread, name, format!("no operation reads it{times}")));
    }
    Ok(())
}

/// A tensor's name with `{layer}` instead of the layer's number.
fn pattern(name: &str, layer: Option<usize>) -> String {
    match layer {
        // Once, because an expert may have the layer's number.
        Some(layer) => name.replacen(&format!(".{layer}."), ".{layer}.", 1),
        None => name.to_owned(),
    }
}
