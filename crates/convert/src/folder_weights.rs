//! A folder of safetensors presented as the GGUF file that it becomes: metadata and tensors, before
//! types are chosen. Weights are read while they are written.

use crate::card::{self, GeneralMetadata};
use crate::error::ConvertError;
use crate::exact::matrix_type;
use crate::gguf_options::GgufOptions;
use crate::metadata;
use crate::peers;
use crate::quantize::{
    Assignment, Mix, Options, QuantizedModel, SourceTensor, WeightRowReader, Weights, write,
};
use crate::report::ConversionReport;
use crate::rows::{NewTensorRows, OldFile};
use crate::target;
use crate::tensors::{NewTensor, NewTensorContents, NewTensorIndex, transferred};
use latent_formats::gguf::{Header, Metadata, Writer};
use latent_formats::identity::Identity;
use latent_formats::{Checkpoint, CheckpointSource, HfSource, OutputError};
use latent_graph::ModelConfig;
use latent_graph::config::{DecayRate, Indexer, QueryGate, RopeScaling};
use latent_text::GgufTokenizer;
use latent_types::TensorType;
use serde_json::Value;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::thread;

/// The weights of a folder, presented as those of a GGUF file. Weights are not read before the file
/// is written.
pub struct FolderWeights<'a> {
    checkpoint: &'a Checkpoint,
    old: OldFile<'a>,
    /// With their default types.
    tensors: Vec<NewTensor>,
    metadata: Metadata,
    types: Options,
    notes: Vec<String>,
}

impl<'a> FolderWeights<'a> {
    /// Describes the GGUF file of a folder.
    ///
    /// # Errors
    /// [`ConvertError`] if it is not a model folder, or a GGUF file cannot describe the model.
    pub fn new(
        checkpoint: &'a Checkpoint,
        options: &GgufOptions<'_>,
    ) -> Result<FolderWeights<'a>, ConvertError> {
        let source = folder_of(checkpoint)?;
        let config = ModelConfig::from_checkpoint(checkpoint)?;
        let old = OldFile::new(checkpoint, &config);
        let mut new = new_config(checkpoint, &config)?;
        // llama.cpp loads queries and gates only as two matrices. Published files of A.X-K2 store
        // one.
        if config.query_gate == Some(QueryGate::Fused) && old.are_queries_and_gates_apart(&config)? {
            new.query_gate = Some(QueryGate::Separate);
        }
        let (transfers, dropped) = transferred(checkpoint, &config, &new)?;
        let stored = matrix_type(checkpoint);
        let own = || Mix::from_name(stored.name()).map(Options::new);
        let types = options
            .types
            .cloned()
            .or_else(own)
            .ok_or(ConvertError::Type { ty: stored, known: "F32, F16, BF16".into() })?;
        let base = types.mix.base();
        // Tensors that a mix does not choose keep the folder's type. FP8 counts as BF16.
        let kept = if base.is_quantized() { stored } else { base };
        let mut tensors: Vec<NewTensor> = rope_factors(&config);
        tensors.extend(transfers.into_iter().map(|transfer| {
            let plain = stays_f32(&transfer.name, &transfer.shape);
            NewTensor::new(transfer, if plain { TensorType::F32 } else { kept })
        }));
        let indexer = Indexer::of(checkpoint)?;
        // Reads the keys back and compares the result with `new`: a model that GGUF cannot describe
        // is refused here.
        let keys = new.checked_gguf_keys(indexer.as_ref(), &NewTensorIndex::new(&tensors))?;
        let tokenizer = GgufTokenizer::new(source, config.vocab_size, options.pre)?;

        let mut report = ConversionReport::default();
        report.dropped(&dropped);
        note_tokenizer(&mut report, tokenizer.as_ref());
        report.notes.extend(ModelConfig::warnings(checkpoint)?);
        report.notes.extend(peers::notes(&new));
        let mut writer = Writer::new();
        metadata::model(&mut writer, &keys);
        metadata::sampling(&mut writer, source);
        about(checkpoint, options, &tensors, &mut report)
            .write(&mut writer, || metadata::size_label(&tensors));
        metadata::tokenizer(&mut writer, tokenizer.as_ref());
        metadata::templates(&mut writer, source);
        // Parse the written header: the rest of the code then sees what a reader of the file will
        // see.
        let metadata = read_back(&writer, checkpoint)?;
        Ok(FolderWeights { checkpoint, old, tensors, metadata, types, notes: report.notes })
    }

    /// Notes for the user: what the new file lacks, and what llama.cpp computes differently.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Chooses the types of the tensors and the files.
    pub fn assignment<'d>(&'d self, options: &GgufOptions<'d>) -> Result<Assignment<'d>, ConvertError> {
        let mut assignment = Assignment::new(self, &self.types, options.importances)?;
        options.split.map_or(Ok(()), |most| assignment.split(most))?;
        Ok(assignment)
    }

    /// Writes `file`, or [the files of a set](Assignment::targets). `tell` receives the written and
    /// the total bytes, and returns whether to continue.
    ///
    /// # Errors
    /// [`ConvertError`]. An existing target stays unchanged.
    pub fn write(
        &self,
        assignment: &Assignment<'_>,
        file: &Path,
        options: &GgufOptions<'_>,
        tell: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<QuantizedModel, ConvertError> {
        target::check_files(self.checkpoint, &assignment.targets(file), options.force)?;
        let threads =
            // available_parallelism respects affinity and cgroup quotas.
            options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        write(assignment, file, threads, tell)
    }
}

impl Weights for FolderWeights<'_> {
    fn display_name(&self) -> String {
        self.checkpoint.display_name()
    }

    fn path(&self) -> &Path {
        self.checkpoint.path()
    }

    fn metadata(&self) -> Result<&Metadata, ConvertError> {
        Ok(&self.metadata)
    }

    fn tensors(&self) -> Vec<SourceTensor> {
        let of = |tensor: &NewTensor| SourceTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            ty: tensor.stored_type(self.checkpoint).unwrap_or(tensor.ty),
            kept: tensor.ty,
            wide: stays_f32(&tensor.name, &tensor.shape),
        };
        self.tensors.iter().map(of).collect()
    }

    fn identity(&self) -> Identity {
        self.checkpoint.identity()
    }

    fn rows_together(&self, tensor: usize) -> usize {
        self.old.unit(&self.tensors[tensor])
    }

    fn rows(&self, tensor: usize) -> Result<Box<dyn WeightRowReader + '_>, ConvertError> {
        Ok(Box::new(self.old.rows(&self.tensors[tensor])?))
    }
}

impl WeightRowReader for NewTensorRows<'_> {
    fn read(&self, first: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        NewTensorRows::read(self, first, out);
        Ok(())
    }

    fn stored(&self, ty: TensorType, rows: Range<usize>) -> Option<Cow<'_, [u8]>> {
        // A stacked tensor ends at each expert; the caller asks again for the rest.
        self.stored_bytes(ty, rows.start, rows.len().min(self.contiguous(rows.start)))
    }

    fn release(&self, rows: Range<usize>) {
        NewTensorRows::release(self, rows.start, rows.len());
    }
}

/// Encodes and parses the metadata, as a reader of the file would.
fn read_back(writer: &Writer, checkpoint: &Checkpoint) -> Result<Metadata, ConvertError> {
    let mut bytes = Vec::new();
    let unwritable = |error| OutputError::Io { path: checkpoint.path().to_owned(), error };
    writer.write_header(&mut bytes).map_err(unwritable)?;
    let header = Header::parse(&bytes, bytes.len() as u64);
    Ok(header.map_err(|error| unwritable(std::io::Error::other(error)))?.metadata)
}

/// Whether a tensor stays F32 in unquantized files.
fn stays_f32(name: &str, shape: &[usize]) -> bool {
    // llama.cpp's converter writes vectors, routers and convolutions in F32.
    shape.len() < 2
        || !name.ends_with(".weight")
        || name.contains(".ffn_gate_inp.")
        || name.contains(".ssm_conv1d_")
        || name.contains(".indexer.proj.")
}

/// The model folder of a checkpoint.
fn folder_of(checkpoint: &Checkpoint) -> Result<&HfSource, ConvertError> {
    let kind = |what| ConvertError::Kind {
        file: checkpoint.display_name(),
        what,
        expected: "a folder of safetensors files",
    };
    match checkpoint.source() {
        _ if checkpoint.packed_from().is_some() => Err(kind("a packed file")),
        CheckpointSource::HuggingFace(source) => Ok(source),
        CheckpointSource::Gguf(_) => Err(kind("a GGUF file")),
    }
}

/// The config in the form of the GGUF file.
fn new_config(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<ModelConfig, ConvertError> {
    let Some(architecture) = ModelConfig::gguf_architecture(checkpoint)? else {
        let (file, architecture) = (checkpoint.display_name(), config.architecture.clone());
        return Err(ConvertError::NoGguf { file, architecture });
    };
    let new = ModelConfig { architecture: architecture.to_owned(), ..config.clone() };
    // `kv_b_proj` is split, except for MiniCPM3 and PLM, for which llama.cpp expects `attn_kv_b`.
    Ok(ModelConfig { kv_form: new.gguf_kv_form(), ..new }.with_rates(DecayRate::Plain))
}

/// LongRoPE factors, which GGUF stores as tensors instead of keys.
fn rope_factors(config: &ModelConfig) -> Vec<NewTensor> {
    let RopeScaling::LongRope { short, long, .. } = &config.rope.scaling else { return Vec::new() };
    let tensor = |(name, factors): (&str, &Vec<f64>)| NewTensor {
        name: name.to_owned(),
        ty: TensorType::F32,
        shape: vec![factors.len()],
        from: NewTensorContents::Numbers(factors.iter().map(|factor| *factor as f32).collect()),
    };
    [("rope_factors_long.weight", long), ("rope_factors_short.weight", short)].map(tensor).into()
}

/// Metadata about the model from the folder's card and ids.
fn about(
    checkpoint: &Checkpoint,
    options: &GgufOptions<'_>,
    list: &[NewTensor],
    report: &mut ConversionReport,
) -> GeneralMetadata {
    let card = card::read(checkpoint.path()).unwrap_or_else(|problem| {
        report.notes.push(problem);
        None
    });
    let own = match checkpoint.source() {
        CheckpointSource::HuggingFace(source) => source.config.get("_name_or_path").and_then(Value::as_str),
        CheckpointSource::Gguf(_) => None,
    };
    let folder = card::id_of(checkpoint.path());
    // `_name_or_path` is often a local path; do not publish it. An id has at most one slash.
    let ids = [options.id, own.filter(|id| id.matches('/').count() <= 1), Some(&folder)];
    let ids: Vec<&str> = ids.into_iter().flatten().collect();
    GeneralMetadata::new(&card.unwrap_or_default(), &ids, list.iter().map(NewTensor::elements).sum())
}

fn note_tokenizer(report: &mut ConversionReport, tokenizer: Option<&GgufTokenizer>) {
    let Some(tokenizer) = tokenizer else {
        report.notes.push("the folder has no tokenizer, so the file has none".into());
        return;
    };
    let rules = tokenizer.lost_rules.iter();
    report
        .notes
        .extend(rules.map(|rule| format!("GGUF files cannot express a rule of the tokenizer, {rule}")));
    if !tokenizer.lost_ends.is_empty() {
        report.notes.push(format!(
            "generation_config.json has more end-of-generation tokens than GGUF has keys for; omitted: {:?}",
            tokenizer.lost_ends
        ));
    }
}
