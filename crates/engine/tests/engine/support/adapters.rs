//! Random models with LoRA adapters merged into their weights.

use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_testing::RandomPair;
use latent_types::TensorType;
use std::path::Path;

/// The sizes of W_UK and W_UV in a file.
#[derive(Clone, Copy)]
pub struct KvSizes {
    pub heads: usize,
    pub nope: usize,
    pub v: usize,
    pub kv_lora: usize,
}

/// B · A at one element; outputs are counted through the experts.
fn product(pair: &RandomPair, output: usize, input: usize) -> f64 {
    let expert = output / pair.outputs;
    let of = |r: usize| {
        let a = pair.a[(expert * pair.rank + r) * pair.inputs + input];
        f64::from(pair.b[output * pair.rank + r]) * f64::from(a)
    };
    (0..pair.rank).map(of).sum()
}

/// Writes an f32 model with the terms of adapters, each with its factor on alpha, in its weights.
pub fn write_merged(path: &Path, base: &Checkpoint, kv: KvSizes, adapters: &[(&[RandomPair], f32, f32)]) {
    let CheckpointSource::Gguf(source) = base.source() else { panic!("a GGUF file") };
    let mut writer = Writer::new();
    for (key, value) in source.metadata.encoded() {
        writer.key(key, WriterValue::Encoded(value.to_vec()));
    }
    let mut data = Vec::new();
    for info in base.tensors() {
        writer.tensor(info.name.clone(), info.ty, &info.shape).unwrap();
        let bytes = base.tensor(&info.name).unwrap().data.to_vec();
        if info.ty != TensorType::F32 {
            data.push(bytes);
            continue;
        }
        let mut numbers: Vec<f64> =
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
        for (pairs, alpha, scale) in adapters {
            for pair in *pairs {
                let factor = f64::from(*scale) * f64::from(*alpha) / pair.rank as f64;
                let half = |name: &str| info.name == pair.target.replace("attn_kv_b", name);
                if info.name == pair.target {
                    for (i, w) in numbers.iter_mut().enumerate() {
                        *w += factor * product(pair, i / pair.inputs, i % pair.inputs);
                    }
                } else if half("attn_k_b") {
                    // [heads, kv_lora, nope]
                    for (i, w) in numbers.iter_mut().enumerate() {
                        let (head, rest) = (i / (kv.kv_lora * kv.nope), i % (kv.kv_lora * kv.nope));
                        let (latent, row) = (rest / kv.nope, rest % kv.nope);
                        *w += factor * product(pair, head * (kv.nope + kv.v) + row, latent);
                    }
                } else if half("attn_v_b") {
                    // [heads, v, kv_lora]
                    for (i, w) in numbers.iter_mut().enumerate() {
                        let (head, rest) = (i / (kv.kv_lora * kv.v), i % (kv.kv_lora * kv.v));
                        let (row, latent) = (rest / kv.kv_lora, rest % kv.kv_lora);
                        *w += factor * product(pair, head * (kv.nope + kv.v) + kv.nope + row, latent);
                    }
                }
            }
        }
        data.push(numbers.iter().flat_map(|n| (*n as f32).to_le_bytes()).collect());
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&data[i])).unwrap();
    std::fs::write(path, file).unwrap();
}
