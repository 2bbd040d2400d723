//! Conversion of GGUF to a folder of safetensors.

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

/// Default maximum bytes of tensors per file: 5 GB, the default of huggingface_hub.
const SHARD: u64 = 5_000_000_000;

/// Options of the folder writer.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions {
    /// Type of the matrices: F32, F16 or BF16. `None` keeps the stored types, with quantized
    /// matrices as BF16.
    pub ty: Option<TensorType>,
    /// Maximum bytes of tensors per file. `None`: 5 GB.
    pub split: Option<u64>,
    /// Replace existing files.
    pub force: bool,
}

/// Writes a GGUF model as a folder with config.json, safetensors, and the tokenizer if
/// tokenizer.json can express it. `tell` receives the written and the total bytes, and returns
/// whether to continue.
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
        // F32 unless `type_of` finds a narrower type.
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
    // config.json last: readers do not take a folder without it for a model, should the run be
    // killed.
    texts.push(("config.json".into(), hf_files::pretty(&config_json.into())));
    // Checked with the complete list of names before anything is created.
    let all: Vec<String> = names.iter().chain(texts.iter().map(|(name, _)| name)).cloned().collect();
    target::check_folder(checkpoint, folder, &all, options.force)?;

    // After an error, dropping this removes the folders it created, if they are empty.
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
    // The files get their names together: a failed run leaves no half-written model.
    CompleteFile::publish_all(written)?;
    made.keep();
    Ok(report)
}

/// The config of a GGUF file in the form of a folder: `kv_b_proj` is one matrix, queries and gates
/// are fused, and decay rates are logarithms.
fn as_folder(config: &ModelConfig) -> ModelConfig {
    let query_gate = config.query_gate.map(|_| QueryGate::Fused);
    ModelConfig { kv_form: KvForm::Combined, query_gate, ..config.clone() }.with_rates(DecayRate::Log)
}

/// The files of a folder without tensors.
#[derive(Clone, Debug, Default)]
pub struct SmallFiles {
    /// Names and contents.
    pub files: Vec<(String, String)>,
    /// What could not be written, and why.
    pub notes: Vec<String>,
}

/// The folder of [`to_folder`] without its tensors, for a program that only prepares prompts
/// (Dynamo's frontend): config.json, tokenizer and chat template.
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

/// Contents of config.json, and the tokenizer's files.
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
        // Packed files contain tiles, not the blocks of GGUF types.
        _ if checkpoint.packed_from().is_some() => Err(kind("a packed file")),
        CheckpointSource::Gguf(source) => Ok(source),
        CheckpointSource::HuggingFace(_) => Err(kind("a folder of safetensors files")),
    }
}

/// Type of a tensor in a folder whose matrices have the 16-bit type `ty`. `asked`: the user chose
/// `ty`.
fn type_of(
    checkpoint: &Checkpoint,
    old: &OldFile<'_>,
    tensor: &NewTensor,
    (ty, asked): (TensorType, bool),
) -> Result<TensorType, ConvertError> {
    let vector = tensor.shape.len() < 2;
    match tensor.stored_type(checkpoint) {
        // 16-bit tensors stay as they are unless the user chose another type. F16 to BF16 would
        // lose bits.
        Some(stored @ (TensorType::F16 | TensorType::BF16)) if vector || !asked => Ok(stored),
        // GGUF stores vectors and routers in F32. They become `ty` again if that is lossless, so
        // that a BF16 folder survives a round trip unchanged.
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
