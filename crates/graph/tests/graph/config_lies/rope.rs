//! Invalid bases, scalings and temperatures.

use super::refused::{SMALL, config, config_key, gguf, small};
use crate::config_support::{GgufFixture, GgufSizes, deepseek_v3};
use serde_json::{Value, json};

#[test]
fn a_base_of_zero() {
    gguf(small().real("rope.freq_base", 0.0), &["rope.freq_base", "is 0", "a number from 1.001"]);
    config_key("rope_theta", json!(0), "a number from 1.001");
    config_key("rope_theta", json!(1.0), "a number from 1.001");
}

#[test]
fn invalid_rope_scalings() {
    let text = |kind| small().text("rope.scaling.type", kind);
    gguf(text("dynamic"), &["rope.scaling.type", "\"dynamic\"", "none, linear, yarn or longrope"]);
    gguf(text("yarn"), &["rope.scaling.factor", "missing"]);
    gguf(text("longrope"), &["tensor rope_factors_long.weight", "missing"]);
    gguf(small().real("rope.scaling.factor", 0.5), &["rope.scaling.factor", "0.5", "at least 1"]);
    let betas = small().yarn(4.0, 128, None).real("rope.scaling.yarn_beta_slow", 64.0);
    gguf(betas, &["yarn_beta_fast", "is 32", "at least deepseek2.rope.scaling.yarn_beta_slow, which is 64"]);
    let scaling = |value: Value| deepseek_v3().set("rope_scaling", value);
    config(scaling(json!({"type": "ntk", "factor": 4})), &["rope_scaling.type", "\"ntk\"", "yarn"]);
    config(scaling(json!({"factor": 4})), &["rope_scaling.rope_type", "missing"]);
    config(scaling(json!({"type": "yarn", "factor": 4})), &["original_max_position_embeddings", "missing"]);
    config(scaling(json!("yarn")), &["rope_scaling", "\"yarn\"", "an object"]);
    let zero = json!({"type": "yarn", "factor": 0, "original_max_position_embeddings": 4096});
    config(scaling(zero), &["rope_scaling.factor", "is 0", "a number from 1"]);
    let short = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
    config(scaling(short), &["rope_scaling.short_factor", "[1.0]", "a list of 32 numbers"]);
}

#[test]
fn invalid_long_factors() {
    let mut file = GgufFixture::new("minicpm3", GgufSizes { experts: 0, ..SMALL });
    file.tensors.put_numbers("rope_factors_short.weight", &[1.0, 1.0, 1.0, 1.0]);
    gguf(file.clone(), &["tensor rope_factors_long.weight", "missing"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0, 1.0, 0.0, 1.0]);
    gguf(file.clone(), &["a factor in tensor rope_factors_long.weight is 0"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0; 3]);
    gguf(file.clone(), &["rope_factors_long.weight", "[3]", "[4]"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0; 4]);
    assert!(file.read().is_ok());
    file.tensors.numbers.clear();
    gguf(file, &["type of tensor rope_factors_short.weight", "F32"]);
}

#[test]
fn temperature_without_its_length() {
    let none = deepseek_v3().set("llama_4_scaling", json!({"beta": 0.1}));
    config(none, &["llama_4_scaling.original_max_position_embeddings", "missing"]);
    let zero = json!({"beta": 0.1, "original_max_position_embeddings": 0});
    config(
        deepseek_v3().set("llama_4_scaling", zero),
        &["original_max_position_embeddings", "is 0", "from 1"],
    );
    let file = small().real("attention.temperature_scale", 0.1).int("attention.temperature_length", 0);
    gguf(file, &["attention.temperature_length", "is 0", "from 1"]);
}
