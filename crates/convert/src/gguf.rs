//! A folder of safetensors as GGUF.

use crate::card::{self, About};
use crate::copy::{Progress, Stream};
use crate::encoding::{Encoding, Uniform, stays_f32};
use crate::error::ConvertError;
use crate::exact::matrix_type;
use crate::metadata;
use crate::peers;
use crate::report::Report;
use crate::rows::OldFile;
use crate::target;
use crate::tensors::{Contents, Listed, NewTensor, cut, transferred};
use latent_formats::gguf::{Writer, WriterValue, shard_name};
use latent_formats::{Checkpoint, CompleteFile, HfSource, OutputFile, Source};
use latent_graph::ModelConfig;
use latent_graph::config::{Indexer, RopeScaling};
use latent_text::GgufTokenizer;
use latent_types::TensorType;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How a GGUF file is written.
#[derive(Clone, Copy, Default)]
pub struct GgufOptions<'a> {
    /// Types of the tensors; none: as the folder stores its matrices, FP8 as BF16.
    pub encoding: Option<&'a dyn Encoding>,
    /// Bytes of tensors that a file may have; none: one file.
    pub split: Option<u64>,
    /// What the pre-tokenizer's rules are called; none: found by what they do.
    pub pre: Option<&'a str>,
    /// The model's id, `OWNER/NAME`; none: the name of its folder.
    pub id: Option<&'a str>,
    /// Replace what is there.
    pub force: bool,
}

/// Writes a model folder as a GGUF file, or as shards beside each other (`NAME-00001-of-0000N.gguf`). `tell` gets the bytes that are
/// written and all of them, and says whether to go on.
///
/// # Errors
/// [`ConvertError`]; nothing has been written then.
pub fn to_gguf(
    checkpoint: &Checkpoint,
    file: &Path,
    options: &GgufOptions<'_>,
    tell: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Report, ConvertError> {
    let source = folder_of(checkpoint)?;
    target::check_files(checkpoint, &[file.to_owned()], options.force || options.split.is_some())?;
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let new = new_config(checkpoint, &config)?;
    let (tensors, dropped) = transferred(checkpoint, &config, &new)?;
    let own = Uniform::new(matrix_type(checkpoint))?;
    let encoding = options.encoding.unwrap_or(&own);
    let mut list: Vec<NewTensor> = rope_factors(&config);
    for transfer in tensors {
        let plain = stays_f32(&transfer.name, &transfer.shape);
        let ty = if plain { TensorType::F32 } else { encoding.tensor_type(&transfer.name, &transfer.shape) };
        list.push(NewTensor::new(transfer, ty));
    }
    let indexer = Indexer::of(checkpoint)?;
    let keys = new.checked_gguf_keys(indexer.as_ref(), &Listed::new(&list))?;
    let tokenizer = GgufTokenizer::new(source, config.vocab_size, options.pre)?;

    let mut report = Report { tensors: list.len(), ..Report::default() };
    report.dropped(&dropped);
    note_tokenizer(&mut report, tokenizer.as_ref());
    report.notes.extend(peers::notes(&new));
    let mut first = Writer::new();
    metadata::model(&mut first, &keys, encoding.file_type());
    metadata::sampling(&mut first, source);
    about(checkpoint, options, &list, &mut report).write(&mut first, || metadata::size_label(&list));
    metadata::tokenizer(&mut first, tokenizer.as_ref());
    metadata::templates(&mut first, source);
    // the tokenizer is large, and a copy of it is in the writer
    drop(tokenizer);

    let total = list.iter().map(NewTensor::bytes).sum();
    let shards = cut(list, options.split)?;
    report.files = names(file, shards.len());
    target::check_files(checkpoint, &report.files, options.force)?;
    let old = OldFile::new(checkpoint, &config);
    write_all(first, &shards, (&old, encoding), &mut Progress::new(total, tell), &mut report)?;
    Ok(report)
}

/// Writes all files, the first with the metadata.
fn write_all(
    first: Writer,
    shards: &[Vec<NewTensor>],
    (old, encoding): (&OldFile<'_>, &dyn Encoding),
    progress: &mut Progress<'_>,
    report: &mut Report,
) -> Result<(), ConvertError> {
    let mut written = Vec::with_capacity(shards.len());
    let mut first = Some(first);
    for (number, (path, shard)) in report.files.iter().zip(shards).enumerate() {
        let mut writer = first.take().unwrap_or_default();
        if shards.len() > 1 {
            writer.key("split.no", WriterValue::U16(number as u16));
            writer.key("split.count", WriterValue::U16(shards.len() as u16));
            writer.key("split.tensors.count", WriterValue::I32(report.tensors as i32));
        }
        let complete = write(path, writer, shard, (old, encoding), progress)?;
        report.bytes += complete.bytes();
        written.push(complete);
    }
    Ok(CompleteFile::publish_all(written)?)
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
        Source::HuggingFace(source) => Ok(source),
        Source::Gguf(_) => Err(kind("a GGUF file")),
    }
}

/// The config as the GGUF file will say it.
fn new_config(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<ModelConfig, ConvertError> {
    let Some(architecture) = ModelConfig::gguf_architecture(checkpoint)? else {
        let (file, architecture) = (checkpoint.display_name(), config.architecture.clone());
        return Err(ConvertError::NoGguf { file, architecture });
    };
    let new = ModelConfig { architecture: architecture.to_owned(), ..config.clone() };
    Ok(ModelConfig { kv_form: new.gguf_kv_form(), ..new })
}

/// LongRoPE's factors, which GGUF files keep as tensors.
fn rope_factors(config: &ModelConfig) -> Vec<NewTensor> {
    let RopeScaling::LongRope { short, long, .. } = &config.rope.scaling else { return Vec::new() };
    let tensor = |(name, factors): (&str, &Vec<f64>)| NewTensor {
        name: name.to_owned(),
        ty: TensorType::F32,
        shape: vec![factors.len()],
        from: Contents::Numbers(factors.iter().map(|factor| *factor as f32).collect()),
    };
    [("rope_factors_long.weight", long), ("rope_factors_short.weight", short)].map(tensor).into()
}

/// What the folder says about the model.
fn about(
    checkpoint: &Checkpoint,
    options: &GgufOptions<'_>,
    list: &[NewTensor],
    report: &mut Report,
) -> About {
    let card = card::read(checkpoint.path()).unwrap_or_else(|problem| {
        report.notes.push(problem);
        None
    });
    let own = match checkpoint.source() {
        Source::HuggingFace(source) => source.config.get("_name_or_path").and_then(Value::as_str),
        Source::Gguf(_) => None,
    };
    let folder = card::id_of(checkpoint.path());
    // a path says where somebody kept the model
    let ids = [options.id, own.filter(|id| id.matches('/').count() <= 1), Some(&folder)];
    let ids: Vec<&str> = ids.into_iter().flatten().collect();
    About::new(&card.unwrap_or_default(), &ids, list.iter().map(NewTensor::elements).sum())
}

fn note_tokenizer(report: &mut Report, tokenizer: Option<&GgufTokenizer>) {
    match tokenizer {
        None => report.notes.push("the folder has no tokenizer, and so the file has none".into()),
        Some(tokenizer) if !tokenizer.lost_ends.is_empty() => report.notes.push(format!(
            "generation_config.json has more tokens that end an answer than GGUF files have keys for; left out: {:?}",
            tokenizer.lost_ends
        )),
        Some(_) => {}
    }
}

/// The files of a set, or the one file.
fn names(file: &Path, count: usize) -> Vec<PathBuf> {
    if count == 1 {
        return vec![file.to_owned()];
    }
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    (0..count).map(|number| file.with_file_name(shard_name(&stem, number, count))).collect()
}

fn write(
    path: &Path,
    mut writer: Writer,
    tensors: &[NewTensor],
    (old, encoding): (&OldFile<'_>, &dyn Encoding),
    progress: &mut Progress<'_>,
) -> Result<CompleteFile, ConvertError> {
    let mut out = OutputFile::create(path)?;
    for tensor in tensors {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).map_err(|error| out.failed(error))?;
    }
    let mut stream = Stream::new(tensors, old, encoding, progress);
    let written = writer.write(&mut out, |i, out| stream.write(i, out));
    stream.outcome(written, &out)?;
    Ok(out.complete()?)
}
