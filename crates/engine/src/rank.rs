//! Loading on several ranks: checks that ranks agree, and the ranks that follow rank 0.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::{EngineOptions, ResolvedOptions};
use crate::summary::Summary;
use latent_backend::{Backend, BackendModel, Communicator, RankError};
use latent_formats::identity::{FNV_START, fnv};
use latent_formats::{Checkpoint, CheckpointSource, Outline, TensorPart};
use latent_graph::circuit::TensorIndex;
use latent_graph::config::RankPart;
use latent_graph::passes::CacheForm;
use latent_graph::{CheckpointTensors, Circuit, GraphError, ModelConfig, Partition, PartitionError, Stage};
use latent_hosts::Hosts;
use latent_hosts::agree::{self, AgreementItem};
use latent_hosts::files;
use latent_types::Setting;
use std::collections::HashSet;
use std::sync::Arc;

/// The result of loading on a rank.
pub enum Rank {
    /// Rank 0, or the only rank: an engine like any other.
    Leads(Box<Engine>),
    /// Any other rank.
    Follows(Box<Follower>),
}

/// A rank that runs the steps of rank 0 on its part of the model.
pub struct Follower {
    pub(crate) model: Box<dyn BackendModel>,
    pub(crate) communicator: Arc<dyn Communicator>,
    pub(crate) summary: Summary,
}

impl Follower {
    /// A summary of the decisions made at loading.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Runs steps until rank 0 drops its engine.
    ///
    /// # Errors
    /// If another rank is lost or has failed, or a step fails on this rank. The other ranks are
    /// notified.
    pub fn run(mut self) -> Result<(), EngineError> {
        Ok(latent_hosts::follow(&mut *self.model, &*self.communicator)?)
    }
}

/// The checkpoint with the tensors of all ranks' files. Tensors of files that only other ranks have
/// are listed without data. A single rank must have all files.
///
/// # Errors
/// If ranks differ in programs or files, a rank is lost, or a single rank lacks files.
pub(crate) fn with_files_of_all(
    options: &EngineOptions,
    checkpoint: &Arc<Checkpoint>,
) -> Result<Arc<Checkpoint>, EngineError> {
    let Some(hosts) = &options.hosts else {
        checkpoint.check_whole()?;
        return Ok(Arc::clone(checkpoint));
    };
    // Each rank checks what it can alone, before the collective calls below: its own error is
    // clearer than the failure of another rank.
    match ModelConfig::before_loading(checkpoint) {
        Ok(whole) => drop(config_of_part(hosts, options, &whole)?),
        Err(error) if checkpoint.is_whole() => return Err(error.into()),
        // The error may be about tensors that other ranks have.
        Err(_) => {}
    }
    let communicator = &*hosts.communicator;
    // Programs are compared first, since other versions may use another protocol.
    let shared = agree::on_facts(communicator, &of_programs())
        .and_then(|()| files::share(communicator, checkpoint))
        .map_err(latent_backend::BackendError::from)?;
    Ok(shared)
}

/// Replaces or extends an error of planning by the missing files, if these may be its cause. A rank
/// plans its own layers first, so a missing tensor is one of its own.
pub(crate) fn with_missing_files(error: EngineError, checkpoint: &Checkpoint) -> EngineError {
    if let EngineError::Graph(GraphError::MissingTensor { tensor, .. }) = &error
        && let Some(needed) = checkpoint.needs(tensor)
    {
        return needed.into();
    }
    let (nowhere, tensors) = checkpoint.files_of_nobody();
    let of_tensors =
        matches!(error, EngineError::ModelConfig(_) | EngineError::Graph(GraphError::MissingTensor { .. }));
    if nowhere.is_empty() || !of_tensors {
        return error;
    }
    let count = tensors.map_or_else(String::new, |count| format!(", with {count} tensors"));
    let files = format!("{}{count}", nowhere.join(", "));
    EngineError::FilesOfNobody { error: Box::new(error), files }
}

/// The config of this rank's part of the model.
///
/// # Errors
/// If the partition does not fit the ranks or the model, or an option is not supported on several
/// ranks.
pub(crate) fn config_of_part(
    hosts: &Hosts,
    options: &EngineOptions,
    whole: &ModelConfig,
) -> Result<ModelConfig, EngineError> {
    let communicator = &hosts.communicator;
    let part = hosts.partition.part(whole, communicator.rank(), communicator.ranks());
    let refuse = |what, advice| Err(GraphError::from(PartitionError::NotBuilt(what, advice)).into());
    if options.draft.has_mtp() {
        return refuse("drafting by the MTP layer", format!("omit {}", Setting::Draft.to("mtp")));
    }
    if options.form == CacheForm::Expanded {
        return refuse("a cache of expanded keys and values", format!("omit {}", Setting::CacheForm));
    }
    Ok(whole.of_part(RankPart { wire: options.wire, ..part.map_err(GraphError::from)? }))
}

/// The config of the first layers, with the embedding and the output.
///
/// # Errors
/// If `count` is not between 1 and the number of layers.
pub(crate) fn config_of_first_layers(whole: &ModelConfig, count: usize) -> Result<ModelConfig, EngineError> {
    if !(1..=whole.layers).contains(&count) {
        return Err(EngineError::Options(format!(
            "cannot load the first {count} layers of a model with {} layers",
            whole.layers
        )));
    }
    // The part of an only rank has the embedding and the output.
    let part = Partition::pipeline(1).part(whole, 0, 1).map_err(GraphError::from)?;
    Ok(whole.of_part(RankPart { layers: 0..count, ..part }))
}

/// The properties of the program that must be equal on all ranks.
fn of_programs() -> [AgreementItem; 3] {
    let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
    [
        AgreementItem::new("byte order", order, "use hosts of one kind"),
        AgreementItem::new("program version", env!("CARGO_PKG_VERSION"), "install one version on all hosts"),
        AgreementItem::new(
            "build",
            option_env!("LATENT_COMMIT").unwrap_or("unknown"),
            "install one build on all hosts",
        ),
    ]
}

/// Checks options and plans that must be equal on all ranks, in addition to programs and files.
///
/// # Errors
/// [`RankError::Differs`] on every rank.
pub(crate) fn compare(
    hosts: &Hosts,
    options: &EngineOptions,
    resolved: &ResolvedOptions<'_>,
) -> Result<(), RankError> {
    let stages = &resolved.options.stages;
    let same = "give all ranks the same options";
    let facts = [
        AgreementItem::new("partition", &hosts.partition, same),
        AgreementItem::new(
            "circuit",
            circuit_hash(&resolved.circuit),
            &format!("give all ranks the same {}, or omit it on all", Setting::Circuit),
        ),
        AgreementItem::new("type on the wire", options.wire, same),
        AgreementItem::new("device", resolved.backend.name(), same),
        AgreementItem::new("precision", format!("{:?}", stages.bind.precision), same),
        AgreementItem::new("KV cache type", stages.bind.cache, same),
        AgreementItem::new(
            "instruction set",
            stages.bind.tier,
            &format!("use the lower one on all ranks: {}", Setting::Tier),
        ),
        AgreementItem::new("formulation of MLA", stages.mla, same),
        AgreementItem::new("sparse attention", options.sparse, same),
        // The option, not the resulting number: hosts may have different numbers of cores, and no
        // sum depends on the number of threads.
        AgreementItem::new("number of threads", format!("{:?}", options.threads), same),
        AgreementItem::new("tokens of a step", format!("{:?}", options.max_batch_tokens), same),
        AgreementItem::new("context", format!("{:?} and {:?}", options.context, options.cache_tokens), same),
    ];
    agree::on_facts(&*hosts.communicator, &facts)
}

/// A hash of a circuit's contents, which does not depend on the formatting of its file.
fn circuit_hash(circuit: &Circuit) -> String {
    let text = serde_json::to_vec(circuit).unwrap_or_default();
    format!("{} {:016x}", circuit.name, fnv(FNV_START, &text))
}

/// The checkpoint with only the parts of tensors that these stages read.
///
/// # Errors
/// If a tensor would be cut within a block of its format, or within the range of one scale.
pub(crate) fn own_tensors(checkpoint: &Checkpoint, stages: &[Stage]) -> Result<Checkpoint, EngineError> {
    let tensors = CheckpointTensors(checkpoint);
    Ok(checkpoint.parts(&parts(&tensors, checkpoint.fp8_block()?, stages)?)?)
}

fn parts(
    tensors: &dyn TensorIndex,
    fp8_block: (usize, usize),
    stages: &[Stage],
) -> Result<Vec<TensorPart>, EngineError> {
    let (mut parts, mut seen) = (Vec::new(), HashSet::new());
    // Stages share weights, for example a tied embedding and `lm_head`.
    for weight in stages.iter().flat_map(Stage::weights) {
        let of_weight = weight.tensor_parts(tensors, fp8_block).map_err(GraphError::from)?;
        parts.extend(of_weight.into_iter().filter(|part| seen.insert(part.tensor.clone())));
    }
    Ok(parts)
}

/// The files that the rank with these plans needs, of a model with all files. These are the files
/// with its tensors and, of GGUF shards, the first, which has the metadata.
///
/// # Errors
/// If a tensor would be cut within the range of one scale.
pub fn files_of_rank(checkpoint: &Checkpoint, stages: &[Stage]) -> Result<Vec<String>, EngineError> {
    let parts = parts(&CheckpointTensors(checkpoint), checkpoint.fp8_block()?, stages)?;
    let mut needed: HashSet<&str> = parts.iter().flat_map(|part| checkpoint.files_of(&part.tensor)).collect();
    if matches!(checkpoint.source(), CheckpointSource::Gguf(_)) {
        needed.extend(checkpoint.file_names().next());
    }
    Ok(checkpoint.file_names().filter(|name| needed.contains(name)).map(str::to_owned).collect())
}

/// Checks that tensors can be cut as the plans of a rank need. Names, types and shapes of the
/// tensors suffice.
///
/// # Errors
/// As for loading: if a tensor would be cut within a block of its format, the range of one scale,
/// or a tile of a packed file.
pub fn check_cut(outline: &Outline, tensors: &dyn TensorIndex, stages: &[Stage]) -> Result<(), EngineError> {
    let parts = parts(tensors, outline.fp8_block()?, stages)?;
    if let Some(whole) = outline.whole() {
        whole.parts(&parts)?;
        return Ok(());
    }
    let within =
        stages.iter().flat_map(Stage::weights).find(|weight| weight.ty.row_bytes(weight.inputs()).is_none());
    let Some(weight) = within else { return Ok(()) };
    Err(EngineError::Options(format!(
        "tensor {} would be split within a block of its format; use fewer ranks, or split by layers or \
         experts",
        weight.key()
    )))
}

/// Checks that tensor parallelism does not cut layers with recurrent states: a rank needs all heads
/// of such layers.
pub(crate) fn check_layers(
    options: &EngineOptions,
    backend: &dyn Backend,
    stages: &[Stage],
) -> Result<(), EngineError> {
    let shared = options.hosts.as_ref().is_some_and(|hosts| hosts.partition.tensor() > 1);
    if shared && backend.layer_states(stages).iter().any(|layer| layer.recurrent().is_some()) {
        let advice = "use pipeline=N or experts=N instead of tensor=N".into();
        let refused = PartitionError::NotBuilt("recurrent state of heads", advice);
        return Err(GraphError::from(refused).into());
    }
    Ok(())
}
