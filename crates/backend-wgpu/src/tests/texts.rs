//! Translates every shader except those of products, on any machine: no adapter is needed.

use super::random_model;
use crate::matmul::tests::translate::translate;
use crate::{cache, largest, ops};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_types::TensorType;
use std::path::Path;

#[test]
fn shaders_of_operations_caches_and_logits_translate_with_every_option() {
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let config = ModelConfig::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
    let mut attention = config.attention;
    // The sizes of DeepSeek-V3.
    (attention.heads, attention.kv_lora_rank) = (128, 512);
    (attention.nope, attention.rope, attention.v) = (128, 64, 128);
    let mut shaders = ops::shaders(&attention, &config.moe.unwrap());
    shaders.extend(cache::shaders());
    shaders.extend(largest::shaders());
    for shader in &shaders {
        let [metal, direct3d] = translate(shader.name, &shader.text());
        assert!(metal.contains("kernel void main_") && direct3d.contains("numthreads"), "{}", shader.name);
    }
    assert!(shaders.len() > 100, "{}", shaders.len());
    // No file may be left out.
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for of in ["ops", "cache", "largest"] {
        for file in sources.join(of).read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "wgsl") {
                let text = std::fs::read_to_string(&file).unwrap();
                let used = shaders.iter().any(|shader| shader.parts.contains(&&*text));
                assert!(used, "{} is in no shader that was translated", file.display());
            }
        }
    }
}
