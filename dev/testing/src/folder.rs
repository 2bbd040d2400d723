//! Random models as folders of safetensors.

use crate::error::TestingError;
use crate::gguf::{tensors, write_tensor};
use crate::shapes::ModelSizes;
use crate::{ModelRecipe, WrittenModel};
use latent_formats::safetensors::Writer;
use latent_formats::{CompleteFile, OutputFile, OutputFolder};
use latent_graph::circuit::TensorNaming;
use latent_graph::config::{Gating, KvForm, ModelConfig};
use latent_types::TensorType;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Rows and columns per scale of an FP8 file: the `weight_block_size` of DeepSeek-V3.
const FP8_BLOCK: usize = 128;

const WEIGHTS: &str = "model.safetensors";

impl ModelRecipe {
    /// Writes the model as a folder with config.json and model.safetensors. Supported types: F32,
    /// F16, BF16 and F8_E4M3 (with block scales).
    ///
    /// # Errors
    /// If the shape or type is unknown, safetensors has no dtype for it, or the folder cannot be
    /// written.
    pub fn write_folder(&self, folder: &Path) -> Result<WrittenModel, TestingError> {
        let shape = self.shape()?;
        let asked = self.types.iter().map(|rule| rule.ty).chain([self.kind.base]);
        if let Some(kind) = asked.into_iter().find(|ty| ty.is_quantized()) {
            return Err(TestingError::NoFolder { kind });
        }
        let config = self.config(shape, KvForm::Combined);
        let mut tensors = tensors(self, &config, TensorNaming::HuggingFace)?;
        for (name, ty, shape) in tensors.clone() {
            if ty == TensorType::F8_E4M3 && !name.contains("embed") && !name.contains("lm_head") {
                let blocks = shape.iter().map(|n| n.div_ceil(FP8_BLOCK)).collect();
                tensors.push((format!("{name}_scale_inv"), TensorType::F32, blocks));
            }
        }
        for (name, ty, _) in &mut tensors {
            // DeepSeek publishes its FP8 models with the embedding and the head in bf16, without
            // scales.
            if *ty == TensorType::F8_E4M3 && (name.contains("embed") || name.contains("lm_head")) {
                *ty = TensorType::BF16;
            }
        }
        let made = OutputFolder::create(folder)?;
        let mut out = OutputFile::create(&folder.join("config.json"))?;
        let text = config_of(shape, &config).to_string();
        out.write_all(text.as_bytes()).map_err(|error| out.failed(error))?;
        let complete = out.complete()?;
        let mut written = WrittenModel { bytes: 0, tensors: 0, first: folder.to_owned() };
        if self.header_only {
            complete.publish()?;
        } else {
            let weights = self.write_weights(&folder.join(WEIGHTS), &tensors)?;
            (written.bytes, written.tensors) = (weights.bytes(), tensors.len());
            CompleteFile::publish_all(vec![weights, complete])?;
        }
        // Returning before this point drops `made`, which removes the folders that it created.
        made.keep();
        Ok(written)
    }

    /// The files that [`ModelRecipe::write_folder`] writes.
    pub fn folder_files(&self, folder: &Path) -> Vec<PathBuf> {
        let weights = (!self.header_only).then(|| folder.join(WEIGHTS));
        [folder.join("config.json")].into_iter().chain(weights).collect()
    }

    fn write_weights(
        &self,
        file: &Path,
        tensors: &[(String, TensorType, Vec<usize>)],
    ) -> Result<CompleteFile, TestingError> {
        let mut out = OutputFile::create(file)?;
        let mut writer = Writer::new();
        for (name, ty, shape) in tensors {
            writer.tensor(name.clone(), *ty, shape).map_err(|error| out.failed(error))?;
        }
        let written = writer.write(&mut out, |i, out| write_tensor(out, self.seed, &tensors[i]));
        written.map_err(|error| out.failed(error))?;
        Ok(out.complete()?)
    }
}

/// config.json as the model's family writes it.
pub(crate) fn config_of(shape: &ModelSizes, config: &ModelConfig) -> Value {
    let a = &config.attention;
    let sigmoid = config.moe.is_some_and(|m| m.router.gating == Gating::Sigmoid);
    let model_type = match config.circuit.as_str() {
        _ if shape.model_type().is_some() => shape.model_type().unwrap_or_default(),
        "deepseek2" if config.moe.is_none() || sigmoid => "deepseek_v3",
        "deepseek2" => "deepseek_v2",
        other => other,
    };
    let scaling = shape.yarn().map(|(factor, original, mscale)| {
        json!({
            "type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": mscale,
            "mscale_all_dim": mscale,
            "llama_4_scaling_beta": a.temperature.map(|temperature| temperature.scale),
        })
    });
    let mut written = json!({
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_nextn_predict_layers": config.mtp_layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads,
        "q_lora_rank": a.q_lora_rank,
        "kv_lora_rank": a.kv_lora_rank,
        "qk_nope_head_dim": a.nope,
        "qk_rope_head_dim": a.rope,
        "v_head_dim": a.v,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.base,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": if config.circuit == "plm" { "relu2" } else { "silu" },
        "attention_bias": false,
        "first_k_dense_replace": shape.dense_lead(config.layers),
        "index_topk": config.index_topk,
        "index_n_heads": a.indexer.map(|indexer| indexer.heads),
        "index_head_dim": a.indexer.map(|indexer| indexer.width),
        "gated_norm_rank": config.norm_rank,
        // MiniCPM3's keys. Other families do not read them.
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    });
    if let (Some(kda), Value::Object(written)) = (&config.kda, &mut written) {
        let word = |layer| if config.is_recurrent(layer) { "linear_attention" } else { "full_attention" };
        written.insert("layer_types".into(), (0..config.layers).map(word).collect());
        written.insert("linear_num_heads".into(), json!(kda.heads));
        written.insert("linear_head_dim".into(), json!(kda.width));
        written.insert("short_conv_kernel_size".into(), json!(kda.taps));
        written.insert("no_kda_lora".into(), json!(kda.rank.is_none()));
        written.insert("kda_safe_gate".into(), json!(kda.lower_bound.is_some()));
        written.insert("kda_lower_bound".into(), json!(kda.lower_bound));
    }
    if let Some(m) = &config.moe {
        let router = json!({
            "n_routed_experts": m.experts,
            "num_experts_per_tok": m.num_experts_per_tok,
            "moe_intermediate_size": m.intermediate,
            "n_shared_experts": shape.shared_experts(),
            "n_group": m.router.groups,
            "topk_group": m.router.groups_used,
            "scoring_func": if sigmoid { "sigmoid" } else { "softmax" },
            "topk_method": if m.router.bias { "noaux_tc" } else { "greedy" },
            "norm_topk_prob": m.router.normalise,
            "routed_scaling_factor": m.router.scale,
        });
        if let (Value::Object(written), Value::Object(router)) = (&mut written, router) {
            written.extend(router);
        }
    }
    written
}
