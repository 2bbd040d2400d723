//! Random LoRA adapters for random models, in llama.cpp's GGUF layout and in PEFT's folder layout.

use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, peft_module, safetensors};
use latent_graph::{ConfigError, ModelConfig};
use latent_types::TensorType;
use std::io;
use std::path::Path;

/// The matrices of one tensor: A, `[rank, inputs]`, and B, `[outputs, rank]`, each repeated for
/// every expert.
pub struct RandomPair {
    pub target: String,
    /// Number of experts; 1 for a plain matrix.
    pub experts: usize,
    pub rank: usize,
    pub outputs: usize,
    pub inputs: usize,
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

/// A number from -1 to 1 that f16 represents exactly.
fn random(seed: &mut u64) -> f32 {
    // The multiplier and increment of Knuth's 64-bit linear congruential generator. Its high bits
    // are the most random: the top ten give a multiple of 1/512.
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*seed >> 54) as f32 - 512.0) / 512.0
}

/// Random pairs for the tensors that `select` accepts, in the order of the file. An adapter for
/// `attn_k_b` or `attn_v_b` is made for the whole `attn_kv_b`. If `rank` is none, tensors cycle
/// through several ranks.
///
/// # Errors
/// A model whose config cannot be read.
pub fn random_pairs(
    base: &Checkpoint,
    seed: u64,
    rank: Option<usize>,
    select: impl Fn(&str) -> bool,
) -> Result<Vec<RandomPair>, ConfigError> {
    let attention = ModelConfig::from_checkpoint(base)?.attention;
    let mut seed = seed;
    let mut pairs = Vec::new();
    for (number, info) in base.tensors().iter().enumerate() {
        let mut target = info.name.clone();
        let mut shape = info.shape.clone();
        // llama.cpp's converter splits kv_b in model files, but adapters are trained on the
        // original matrix.
        if target.contains("attn_k_b") {
            target = target.replace("attn_k_b", "attn_kv_b");
            shape = vec![attention.heads * (attention.nope + attention.v), attention.kv_lora_rank];
        }
        let (experts, outputs, inputs) = match shape[..] {
            [outputs, inputs] => (1, outputs, inputs),
            [experts, outputs, inputs] if target.contains("_exps.") => (experts, outputs, inputs),
            _ => continue,
        };
        if outputs == 1 || !select(&target) {
            continue;
        }
        // By the number of the tensor, so that its rank does not depend on `select`.
        let rank = rank.unwrap_or([1, 3, 8, 16][number % 4]);
        let mut numbers =
            |count: usize, size: f32| -> Vec<f32> { (0..count).map(|_| random(&mut seed) * size).collect() };
        let a = numbers(experts * rank * inputs, 1.0 / 16.0);
        let b = numbers(experts * outputs * rank, 1.0 / 4.0);
        pairs.push(RandomPair { target, experts, rank, outputs, inputs, a, b });
    }
    Ok(pairs)
}

/// Encodes numbers in a type.
fn bytes_of(ty: TensorType, numbers: &[f32]) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ty.row_bytes(numbers.len()).unwrap_or(0)];
    latent_quant::encode(ty, numbers, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Writes an adapter as a GGUF file, like llama.cpp's convert_lora_to_gguf.py.
///
/// # Errors
/// If the file cannot be written.
pub fn write_gguf_adapter(
    path: &Path,
    architecture: &str,
    alpha: f32,
    ty: TensorType,
    pairs: &[RandomPair],
) -> io::Result<()> {
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String(architecture.into()));
    writer.key("general.type", WriterValue::String("adapter".into()));
    writer.key("adapter.type", WriterValue::String("lora".into()));
    writer.key("adapter.lora.alpha", WriterValue::F32(alpha));
    let mut data = Vec::new();
    for pair in pairs {
        let stacked = if pair.experts > 1 { &[pair.experts][..] } else { &[] };
        for (side, shape) in [("a", [pair.rank, pair.inputs]), ("b", [pair.outputs, pair.rank])] {
            writer.tensor(format!("{}.lora_{side}", pair.target), ty, &[stacked, &shape].concat())?;
        }
        data.extend([bytes_of(ty, &pair.a)?, bytes_of(ty, &pair.b)?]);
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&data[i]))?;
    std::fs::write(path, file)
}

/// Writes an adapter as a PEFT folder with this adapter_config.json.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_peft_adapter(folder: &Path, config: &serde_json::Value, pairs: &[RandomPair]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("adapter_config.json"), config.to_string())?;
    let mut writer = safetensors::Writer::new();
    let mut data = Vec::new();
    for pair in pairs {
        for (is_a, shape, numbers) in
            [(true, [pair.rank, pair.inputs], &pair.a), (false, [pair.outputs, pair.rank], &pair.b)]
        {
            writer.tensor(peft_module(&pair.target, is_a), TensorType::F32, &shape)?;
            data.push(bytes_of(TensorType::F32, numbers)?);
        }
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&data[i]))?;
    std::fs::write(folder.join("adapter_model.safetensors"), file)
}
