//! Random models as GGUF files.

use crate::error::TestingError;
use crate::kind::fitting;
use crate::random::{Random, Spread, rows};
use crate::shapes::Shape;
use crate::{Mtp, Recipe, Written};
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{CompleteFile, OutputFile};
use latent_graph::circuit::{DeclaredTensors, Naming};
use latent_graph::config::{FfnActivation, Gating, KvForm, ModelConfig};
use latent_types::TensorType;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of a tensor that are drawn afresh; larger ones repeat them from random rows.
const POOL: usize = 256 << 10;

/// Tensors of a recipe: name, type, shape (outermost first), in a fixed order.
pub(crate) fn tensors(
    recipe: &Recipe,
    config: &ModelConfig,
    naming: Naming,
) -> Result<Vec<(String, TensorType, Vec<usize>)>, TestingError> {
    let declared = DeclaredTensors::new(config, naming, recipe.kind.base)?;
    let shared = |name: &str| {
        let own = ["nextn.embed_tokens", "nextn.shared_head", "shared_head."]
            .iter()
            .any(|part| name.contains(part));
        let layer = |start: &str| name.strip_prefix(start)?.split('.').next()?.parse().ok();
        own || name.ends_with(".embed_tokens.weight") && layer("model.layers.") == Some(config.layers)
    };
    let mut list: Vec<_> = declared
        .iter()
        .filter(|(name, ..)| recipe.mtp != Mtp::Shared || !shared(name))
        .map(|(name, _, shape)| {
            let ty = if shape.len() == 1 || name.contains("ffn_gate_inp") || name.ends_with("mlp.gate.weight")
            {
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

/// Numbers inside names count as numbers: layer 2 before layer 10.
fn natural(name: &str) -> Vec<(u64, String)> {
    name.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part.to_owned())).collect()
}

/// Writes the numbers of one tensor.
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
    let pool = rows(&mut random, *ty, fresh, cols, Spread::of(name, shape)).map_err(io::Error::other)?;
    out.write_all(&pool)?;
    let mut left = total - fresh;
    while left > 0 {
        let start = (random.next() % (fresh as u64 / 2 + 1)) as usize;
        let take = left.min(fresh - start);
        out.write_all(&pool[start * row..(start + take) * row])?;
        left -= take;
    }
    Ok(())
}

impl Recipe {
    /// Writes the model as a GGUF file, or as shards beside each other (`NAME-00001-of-0000N.gguf`).
    ///
    /// # Errors
    /// A shape or type that is not known; what the file system says.
    pub fn write_gguf(&self, path: &Path) -> Result<Written, TestingError> {
        let shape = self.shape()?;
        let form = if self.legacy { KvForm::Combined } else { KvForm::Separate };
        let config = self.config(shape, form);
        let tensors = tensors(self, &config, Naming::Gguf)?;
        let asked = self.shards.unwrap_or(1).clamp(1, tensors.len());
        let parts: Vec<_> = tensors.chunks(tensors.len().div_ceil(asked)).collect();
        // of equal parts there may be fewer than were asked for
        let count = parts.len();
        let mut written = Written { bytes: 0, tensors: tensors.len(), first: path.to_owned() };
        let mut files = Vec::with_capacity(count);
        for (number, part) in parts.into_iter().enumerate() {
            let file = if self.shards.is_some() { shard_path(path, number, count) } else { path.to_owned() };
            let mut writer = Writer::new();
            if number == 0 {
                keys(&mut writer, shape, &config, self.legacy);
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
}

fn shard_path(path: &Path, number: usize, count: usize) -> PathBuf {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1))
}

/// Metadata as converters write it.
fn keys(writer: &mut Writer, shape: &Shape, config: &ModelConfig, legacy: bool) {
    let a = &config.attention;
    let arch = config.architecture.as_str();
    let text = |s: &str| WriterValue::String(s.to_owned());
    writer.key("general.architecture", text(arch));
    writer.key("general.name", text(config.name.as_deref().unwrap_or_default()));
    let split = config.kv_form == KvForm::Separate;
    let (key, value) = if split { (a.latent_width(), a.kv_lora_rank) } else { (a.nope + a.rope, a.v) };
    let mut numbers = vec![
        ("block_count", config.all_layers()),
        ("context_length", config.context_length),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", a.heads),
        ("attention.head_count_kv", if legacy || !split { a.heads } else { 1 }),
        ("attention.kv_lora_rank", a.kv_lora_rank),
        ("attention.key_length", key),
        ("attention.value_length", value),
        ("rope.dimension_count", a.rope),
        ("vocab_size", config.vocab_size),
    ];
    if split {
        numbers.extend([("attention.key_length_mla", a.nope + a.rope), ("attention.value_length_mla", a.v)]);
    }
    if config.mtp_layers > 0 {
        numbers.push(("nextn_predict_layers", config.mtp_layers));
    }
    if let Some(rank) = a.q_lora_rank {
        numbers.push(("attention.q_lora_rank", rank));
    }
    if let Some(top_k) = config.index_topk {
        numbers.push(("attention.indexer.top_k", top_k));
    }
    if config.activation == FfnActivation::SiluGated && config.circuit != "minicpm3" {
        numbers.push(("leading_dense_block_count", shape.dense_lead(config.layers)));
        numbers.push(("expert_shared_count", shape.shared_experts()));
        numbers.push((
            "expert_feed_forward_length",
            config.moe.map_or(config.intermediate_size, |m| m.intermediate),
        ));
    }
    if let Some(m) = &config.moe {
        let gating = if m.router.gating == Gating::Sigmoid { 2 } else { 1 };
        numbers.extend([
            ("expert_count", m.experts),
            ("expert_used_count", m.num_experts_per_tok),
            ("expert_gating_func", gating),
        ]);
        if m.router.groups > 1 {
            numbers.extend([
                ("expert_group_count", m.router.groups),
                ("expert_group_used_count", m.router.groups_used),
            ]);
        }
        writer.key(format!("{arch}.expert_weights_scale"), WriterValue::F32(m.router.scale as f32));
        writer.key(format!("{arch}.expert_weights_norm"), WriterValue::Bool(m.router.normalise));
    }
    for (name, number) in numbers {
        writer.key(format!("{arch}.{name}"), WriterValue::U32(number as u32));
    }
    writer.key(format!("{arch}.attention.layer_norm_rms_epsilon"), WriterValue::F32(config.rms_eps as f32));
    writer.key(format!("{arch}.rope.freq_base"), WriterValue::F32(config.rope.base as f32));
    if let Some((factor, original, mscale)) = shape.yarn() {
        writer.key(format!("{arch}.rope.scaling.type"), text("yarn"));
        writer.key(format!("{arch}.rope.scaling.factor"), WriterValue::F32(factor as f32));
        writer.key(format!("{arch}.rope.scaling.original_context_length"), WriterValue::U32(original as u32));
        writer.key(format!("{arch}.rope.scaling.yarn_log_multiplier"), WriterValue::F32(0.1 * mscale as f32));
    }
    vocabulary(writer, config.vocab_size);
}

/// All bytes, two control tokens, fillers.
fn vocabulary(writer: &mut Writer, size: usize) {
    let mut moved = 0;
    let mut tokens: Vec<Vec<u8>> = (0..256u32)
        .map(|b| {
            let stands = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if stands { b } else { 0x100 + moved };
            moved += u32::from(!stands);
            char::from_u32(code).map(|c| c.to_string().into_bytes()).unwrap_or_default()
        })
        .collect();
    tokens.extend([b"<bos>".to_vec(), b"<eos>".to_vec()]);
    tokens.extend((258..size).map(|i| format!("<unused{i}>").into_bytes()));
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
