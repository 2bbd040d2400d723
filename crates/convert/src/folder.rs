//! GGUF as a folder of safetensors.

use crate::card;
use crate::copy::{ConversionProgress, TensorDataStream};
use crate::error::ConvertError;
use crate::exact::{matrix_type, narrowed};
use crate::hf_files::{self, TextFile};
use crate::report::ConversionReport;
use crate::rows::OldFile;
use crate::target;
use crate::tensors::{NewTensor, NewTensorIndex, transferred};
use latent_formats::safetensors::Writer;
use latent_formats::{Checkpoint, CheckpointSource, CompleteFile, GgufSource, OutputFile, OutputFolder, cut};
use latent_graph::ModelConfig;
use latent_graph::config::{DecayRate, Indexer, KvForm, QueryGate};
use latent_types::TensorType;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::Path;

/// Bytes of tensors in a file, where nothing else is asked for.
const SHARD: u64 = 5_000_000_000;

/// How a folder is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions {
    /// The type of matrices: F32, F16 or BF16; none: as they are stored, quantized ones as BF16.
    pub ty: Option<TensorType>,
    /// Bytes of tensors that a file may have; none: 5 GB.
    pub split: Option<u64>,
    /// Replace what is there.
    pub force: bool,
}

/// Writes a GGUF model as a folder with config.json, the tokenizer where tokenizer.json can say what it does, and safetensors. `tell` gets the
/// bytes that are written and all of them, and says whether to go on.
pub fn to_folder(
    checkpoint: &Checkpoint,
    folder: &Path,
    options: &FolderOptions,
    tell: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ConversionReport, ConvertError> {
    let source = gguf_of(checkpoint)?;
    let ty = match options.ty {
        Some(ty @ (TensorType::F32 | TensorType::F16 | TensorType::BF16)) => ty,
        Some(ty) => return Err(ConvertError::Type { ty, known: "F32, F16, BF16".into() }),
        None => matrix_type(checkpoint),
    };
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let new = as_folder(&config);
    let (tensors, dropped) = transferred(checkpoint, &config, &new)?;
    let old = OldFile::new(checkpoint, &config);
    let mut list = Vec::with_capacity(tensors.len());
    for transfer in tensors {
        let wide = NewTensor::new(transfer, TensorType::F32);
        let ty = if ty == TensorType::F32 {
            ty
        } else {
            type_of(checkpoint, &old, &wide, (ty, options.ty.is_some()))?
        };
        list.push(NewTensor { ty, ..wide });
    }
    let mut report = ConversionReport { tensors: list.len(), ..ConversionReport::default() };
    report.dropped(&dropped);
    let (config_json, mut texts) = described(checkpoint, source, &new, &list, ty, &mut report)?;
    texts.extend(card::of_metadata(&source.metadata)?.map(|text| (card::CARD.to_owned(), text)));
    let bytes: Vec<u64> = list.iter().map(NewTensor::bytes).collect();
    let total = bytes.iter().sum();
    let parts = cut(&bytes, options.split.unwrap_or(SHARD))?;
    let shards: Vec<&[NewTensor]> = parts.into_iter().map(|part| &list[part]).collect();
    let names = hf_files::names(shards.len());
    texts.extend(hf_files::index(&shards, &names, total));
    // written last: without config.json, readers do not take the folder for a model
    texts.push(("config.json".into(), hf_files::pretty(&config_json.into())));
    let all: Vec<String> = names.iter().chain(texts.iter().map(|(name, _)| name)).cloned().collect();
    target::check_folder(checkpoint, folder, &all, options.force)?;

    let made = OutputFolder::create(folder)?;
    let mut progress = ConversionProgress::new(total, tell);
    let mut written = Vec::with_capacity(all.len());
    for (name, shard) in names.iter().zip(&shards) {
        written.push(write(&folder.join(name), shard, &old, &mut progress)?);
    }
    for (name, text) in &texts {
        written.push(write_text(&folder.join(name), text)?);
    }
    report.bytes = written.iter().map(CompleteFile::bytes).sum();
    report.files.push(folder.to_owned());
    report.files.extend(all.iter().map(|name| folder.join(name)));
    CompleteFile::publish_all(written)?;
    made.keep();
    Ok(report)
}

/// The config of a GGUF file as a folder says it.
fn as_folder(config: &ModelConfig) -> ModelConfig {
    let query_gate = config.query_gate.map(|_| QueryGate::Fused);
    ModelConfig { kv_form: KvForm::Combined, query_gate, ..config.clone() }.with_rates(DecayRate::Log)
}

/// The files of a folder that hold no tensors.
#[derive(Clone, Debug, Default)]
pub struct SmallFiles {
    /// Their names and texts.
    pub files: Vec<(String, String)>,
    /// What could not be written, and why.
    pub notes: Vec<String>,
}

/// The folder of [`to_folder`] without its tensors, for a program that only prepares prompts: config.json, the tokenizer and its chat template.
pub fn small_files(checkpoint: &Checkpoint) -> Result<SmallFiles, ConvertError> {
    let source = gguf_of(checkpoint)?;
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let new = as_folder(&config);
    let (tensors, _) = transferred(checkpoint, &config, &new)?;
    let list: Vec<_> =
        tensors.into_iter().map(|transfer| NewTensor::new(transfer, TensorType::F32)).collect();
    let mut report = ConversionReport::default();
    let ty = matrix_type(checkpoint);
    let (config_json, mut files) = described(checkpoint, source, &new, &list, ty, &mut report)?;
    files.push(("config.json".into(), hf_files::pretty(&config_json.into())));
    Ok(SmallFiles { files, notes: report.notes })
}

/// What config.json says, and the files of the tokenizer.
fn described(
    checkpoint: &Checkpoint,
    source: &GgufSource,
    new: &ModelConfig,
    list: &[NewTensor],
    ty: TensorType,
    report: &mut ConversionReport,
) -> Result<(Map<String, Value>, Vec<TextFile>), ConvertError> {
    let indexer = Indexer::of(checkpoint)?;
    let mut config_json = new.config_json(indexer.as_ref(), &NewTensorIndex::new(list))?;
    let texts = hf_files::tokenizer(source, &mut config_json, report)?;
    hf_files::name_type(&mut config_json, ty);
    Ok((config_json, texts))
}

fn write_text(path: &Path, text: &str) -> Result<CompleteFile, ConvertError> {
    let mut out = OutputFile::create(path)?;
    out.write_all(text.as_bytes()).map_err(|error| out.failed(error))?;
    Ok(out.complete()?)
}

/// The GGUF file of a checkpoint.
fn gguf_of(checkpoint: &Checkpoint) -> Result<&GgufSource, ConvertError> {
    let kind = |what| ConvertError::Kind { file: checkpoint.display_name(), what, expected: "a GGUF file" };
    match checkpoint.source() {
        _ if checkpoint.packed_from().is_some() => Err(kind("a packed file")),
        CheckpointSource::Gguf(source) => Ok(source),
        CheckpointSource::HuggingFace(_) => Err(kind("a folder of safetensors files")),
    }
}

/// The type of a tensor in a folder whose matrices have the 16-bit type `ty`, which may have been `asked` for.
fn type_of(
    checkpoint: &Checkpoint,
    old: &OldFile<'_>,
    tensor: &NewTensor,
    (ty, asked): (TensorType, bool),
) -> Result<TensorType, ConvertError> {
    let vector = tensor.shape.len() < 2;
    match tensor.stored_type(checkpoint) {
        Some(stored @ (TensorType::F16 | TensorType::BF16)) if vector || !asked => Ok(stored),
        Some(TensorType::F32) if vector || !asked => narrowed(checkpoint, old, tensor, ty),
        _ => Ok(ty),
    }
}

fn write(
    path: &Path,
    tensors: &[NewTensor],
    old: &OldFile<'_>,
    progress: &mut ConversionProgress<'_>,
) -> Result<CompleteFile, ConvertError> {
    let mut out = OutputFile::create(path)?;
    let mut writer = Writer::new();
    for tensor in tensors {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).map_err(|error| out.failed(error))?;
    }
    let mut stream = TensorDataStream::new(tensors, old, progress);
    let written = writer.write(&mut out, |i, out| stream.write(i, out));
    stream.outcome(written, &out)?;
    Ok(out.complete()?)
}
