//! Random models as GGUF files.

use crate::error::TestingError;
use crate::kind::fitting;
use crate::random::{NumberSpread, Random, rows};
use crate::{ModelRecipe, MtpLayer, WrittenModel};
use latent_formats::gguf::{Writer, WriterValue, shard_name};
use latent_formats::{CompleteFile, OutputFile};
use latent_graph::circuit::{DeclaredTensors, TensorNaming};
use latent_graph::config::{KvForm, ModelConfig};
use latent_types::TensorType;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of a tensor that are random. The rest of a larger tensor is copied from these rows,
/// without drawing or encoding any further numbers.
const POOL: usize = 256 << 10;

/// Tensors of a recipe: name, type and shape (outermost dimension first), sorted by name.
pub(crate) fn tensors(
    recipe: &ModelRecipe,
    config: &ModelConfig,
    naming: TensorNaming,
) -> Result<Vec<(String, TensorType, Vec<usize>)>, TestingError> {
    let declared = DeclaredTensors::new(config, naming, recipe.kind.base)?;
    // With `MtpLayer::Shared` the MTP layer has no embedding, head or head norm of its own. GGUF
    // and Hugging Face name them differently. In the latter, `model.layers.N` with N equal to the
    // number of layers is the MTP layer.
    let shared = |name: &str| {
        let own = ["nextn.embed_tokens", "nextn.shared_head", "shared_head."]
            .iter()
            .any(|part| name.contains(part));
        let layer = |start: &str| name.strip_prefix(start)?.split('.').next()?.parse().ok();
        own || name.ends_with(".embed_tokens.weight") && layer("model.layers.") == Some(config.layers)
    };
    let mut list: Vec<_> = declared
        .iter()
        .filter(|(name, ..)| recipe.mtp != MtpLayer::Shared || !shared(name))
        .map(|(name, _, shape)| {
            // Rules are searched backwards, so that the last matching rule wins.
            let rule = recipe.types.iter().rev().find(|rule| rule.matches(name));
            let ty = if let Some(rule) = rule.filter(|_| shape.len() > 1) {
                fitting(rule.ty, shape[shape.len() - 1])
            } else if shape.len() == 1
                || name.contains("ffn_gate_inp")
                || name.contains(".ssm_conv1d_")
                || name.ends_with(".ssm_a")
                || name.ends_with("mlp.gate.weight")
            {
                // llama.cpp's converter keeps vectors, routers, convolutions and decay rates in
                // F32.
                TensorType::F32
            } else if name.contains("attn_k_b") || name.contains("attn_v_b") {
                fitting(recipe.kv_b.unwrap_or(recipe.kind.base), shape[shape.len() - 1])
            } else if name.contains("down") || name == "output.weight" {
                fitting(recipe.kind.down, shape[shape.len() - 1])
            } else {
                fitting(recipe.kind.base, shape[shape.len() - 1])
            };
            (name.to_owned(), ty, shape.to_vec())
        })
        .collect();
    list.sort_by_cached_key(|(name, ..)| natural(name));
    Ok(list)
}

/// Sort key in which numbers inside names compare as numbers: layer 2 comes before layer 10.
fn natural(name: &str) -> Vec<(u64, String)> {
    name.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part.to_owned())).collect()
}

/// Writes the weights of one tensor.
pub(crate) fn write_tensor(
    out: &mut dyn Write,
    seed: u64,
    (name, ty, shape): &(String, TensorType, Vec<usize>),
) -> io::Result<()> {
    let mut random = Random::of_tensor(seed, name);
    let cols = shape[shape.len() - 1];
    let total: usize = shape[..shape.len() - 1].iter().product();
    let row = ty.row_bytes(cols).unwrap_or(1).max(1);
    let fresh = (POOL / row).clamp(1, total);
    let pool =
        rows(&mut random, *ty, fresh, cols, NumberSpread::of(name, shape)).map_err(io::Error::other)?;
    out.write_all(&pool)?;
    let mut left = total - fresh;
    while left > 0 {
        // Starting in the first half of the pool makes every copy at least half a pool long.
        let start = (random.next() % (fresh as u64 / 2 + 1)) as usize;
        let take = left.min(fresh - start);
        out.write_all(&pool[start * row..(start + take) * row])?;
        left -= take;
    }
    Ok(())
}

impl ModelRecipe {
    /// Writes the model as a GGUF file, or as shards in one folder (`NAME-00001-of-0000N.gguf`).
    ///
    /// # Errors
    /// If the shape or type is unknown, or a file cannot be written.
    pub fn write_gguf(&self, path: &Path) -> Result<WrittenModel, TestingError> {
        let shape = self.shape()?;
        let form = if self.legacy { KvForm::Combined } else { KvForm::Separate };
        let config = self.config(shape, form);
        let tensors = tensors(self, &config, TensorNaming::Gguf)?;
        let parts: Vec<_> = tensors.chunks(self.shard_tensors(tensors.len())).collect();
        // Rounding up the tensors per shard can leave fewer shards than requested: 5 tensors in 4
        // shards make 3 shards of at most 2.
        let count = parts.len();
        let mut written = WrittenModel { bytes: 0, tensors: tensors.len(), first: path.to_owned() };
        let mut files = Vec::with_capacity(count);
        for (number, part) in parts.into_iter().enumerate() {
            let file = if self.shards.is_some() { shard_path(path, number, count) } else { path.to_owned() };
            let mut writer = Writer::new();
            if number == 0 {
                // Only the first shard holds the model's metadata, as llama-gguf-split writes it.
                keys(&mut writer, &config)?;
                written.first.clone_from(&file);
            }
            if self.shards.is_some() {
                writer.key("split.no", WriterValue::U16(number as u16));
                writer.key("split.count", WriterValue::U16(count as u16));
                writer.key("split.tensors.count", WriterValue::I32(tensors.len() as i32));
            }
            let mut out = OutputFile::create(&file)?;
            for (name, ty, shape) in part {
                writer.tensor(name.clone(), *ty, shape).map_err(|error| out.failed(error))?;
            }
            let done = if self.header_only {
                writer.write_header(&mut out)
            } else if self.sparse {
                writer.write_header(&mut out).and_then(|()| out.skip(writer.data_bytes()?))
            } else {
                writer.write(&mut out, |i, out| write_tensor(out, self.seed, &part[i]))
            };
            done.map_err(|error| out.failed(error))?;
            let complete = out.complete()?;
            written.bytes += complete.bytes();
            files.push(complete);
        }
        CompleteFile::publish_all(files)?;
        Ok(written)
    }

    /// The files that [`ModelRecipe::write_gguf`] writes.
    pub fn gguf_files(&self, path: &Path) -> Result<Vec<PathBuf>, TestingError> {
        if self.shards.is_none() {
            return Ok(vec![path.to_owned()]);
        }
        let form = if self.legacy { KvForm::Combined } else { KvForm::Separate };
        let tensors = tensors(self, &self.config(self.shape()?, form), TensorNaming::Gguf)?.len();
        let count = tensors.div_ceil(self.shard_tensors(tensors));
        Ok((0..count).map(|number| shard_path(path, number, count)).collect())
    }

    fn shard_tensors(&self, tensors: usize) -> usize {
        tensors.div_ceil(self.shards.unwrap_or(1).clamp(1, tensors))
    }
}

fn shard_path(path: &Path, number: usize, count: usize) -> PathBuf {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(shard_name(&stem, number, count))
}

/// Writes the metadata that llama.cpp's converter writes.
fn keys(writer: &mut Writer, config: &ModelConfig) -> Result<(), TestingError> {
    for (key, value) in config.gguf_keys(None)?.written() {
        writer.key(key, value);
    }
    writer.key("general.name", WriterValue::String(config.name.clone().unwrap_or_default()));
    vocabulary(writer, config.vocab_size);
    Ok(())
}

/// A byte-level vocabulary: the 256 bytes, BOS and EOS, then unused tokens up to `size`.
fn vocabulary(writer: &mut Writer, size: usize) {
    let mut moved = 0;
    let mut tokens: Vec<Vec<u8>> = (0..256u32)
        .map(|b| {
            // GPT-2's bytes_to_unicode: printable Latin-1 bytes stand for themselves, all others
            // are moved to U+0100 and above in order.
            let is_printable = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if is_printable { b } else { 0x100 + moved };
            moved += u32::from(!is_printable);
            char::from_u32(code).map(|c| c.to_string().into_bytes()).unwrap_or_default()
        })
        .collect();
    tokens.extend([b"<bos>".to_vec(), b"<eos>".to_vec()]);
    tokens.extend((258..size).map(|i| format!("<unused{i}>").into_bytes()));
    // llama.cpp's token types: 1 is normal, 3 is control, 5 is unused.
    let kinds = (0..tokens.len()).map(|i| [1, 3, 5][usize::from(i >= 256) + usize::from(i >= 258)]).collect();
    writer.key("tokenizer.ggml.model", WriterValue::String("gpt2".into()));
    writer.key("tokenizer.ggml.pre", WriterValue::String("deepseek-llm".into()));
    writer.key("tokenizer.ggml.tokens", WriterValue::Strings(tokens));
    writer.key("tokenizer.ggml.token_type", WriterValue::I32s(kinds));
    writer.key("tokenizer.ggml.merges", WriterValue::Strings(vec!["Ġ t".into()]));
    writer.key("tokenizer.ggml.bos_token_id", WriterValue::U32(256));
    writer.key("tokenizer.ggml.eos_token_id", WriterValue::U32(257));
    writer.key("tokenizer.ggml.add_bos_token", WriterValue::Bool(true));
}
