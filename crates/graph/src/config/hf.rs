//! Reads a `ModelConfig` from config.json, with the defaults of each family's published code for
//! missing keys.
use super::error::ConfigError;
use super::families::{self, ModelFamily};
use super::hf_file::HfConfig;
use super::hf_moe;
use super::hf_refused;
use super::hf_rope;
use super::indexer::Indexer;
use super::keys;
use super::limits;
use super::reader::Reader;
use super::source::{ConfigTensors, MetadataKeys, MetadataValue};
use super::{
    AttentionShape, FfnActivation, IndexerShape, KvForm, LayerKind, ModelConfig, OutputGate, QueryGate,
    RopePairs,
};
use crate::naming::HF_PREFIXES;

/// Reads the config of a Hugging Face folder.
pub(super) fn read(keys: &dyn MetadataKeys, tensors: &dyn ConfigTensors) -> Result<ModelConfig, ConfigError> {
    let top = Reader::json(keys);
    let (family, text) = find_family(&top)?;
    let text = text.spelled(family.keys);
    let config = HfConfig { family, text, tensors, prefix: prefix(tensors, family), attention_layer: 0 };
    let vocab_size = config.vocab_size()?;
    let hidden_size = config.hidden_size()?;
    let layers = config.text.need(&keys::LAYERS)?;
    let recurrent = config.recurrent_layers(layers)?;
    let attention_layer = recurrent.iter().position(|recurrent| !recurrent).unwrap_or(0);
    let config = HfConfig { attention_layer, ..config };
    // Before sizes are read: an unsupported feature is a clearer error than a shape that does not
    // fit.
    hf_refused::check(&config.text, family)?;
    let mtp_layers = config.mtp_layers(layers)?;
    let kda = config.kda(recurrent, mtp_layers)?;
    let context_length = config.text.need(&keys::CONTEXT)?;
    let shared_key = config.text.need(&keys::ROPE_WIDTH)?;
    let rope = hf_rope::read(&config.text, family, shared_key, context_length)?;
    let attention = config.attention(shared_key, rope.score_scale)?;
    // After the attention, because a partial factor may refer to the whole head.
    hf_rope::check_part(&config.text, shared_key, attention.nope + attention.rope)?;
    let layer_kinds = hf_moe::layer_kinds(&config, layers, mtp_layers)?;
    let moe = hf_moe::read(&config, &layer_kinds[..layers], hidden_size)?;
    let intermediate_size = config.intermediate_size(&layer_kinds)?;
    let scales = config.scales(layers, hidden_size)?;
    let index_topk = config.text.get(&keys::INDEX_TOPK)?;
    // An indexer without `index_topk` cannot be ignored: dense attention would give other results.
    let stored = config.layer_tensor(0, "self_attn.indexer.wk.weight");
    if index_topk.is_none() && config.tensors.has(&stored) {
        let hint = format!("{stored} belongs to an indexer, which needs the number of tokens to select");
        return Err(config.text.missing("index_topk", hint));
    }
    let described = Indexer::of_config_json(&config.text)?;
    let pairs = match config.text.flag("indexer_rope_interleave")? {
        Some(true) => RopePairs::Interleaved,
        Some(false) => RopePairs::NeoX,
        None => family.index_pairs,
    };
    let indexer = described.as_ref().zip(index_topk).map(|(it, topk)| it.shape(topk, pairs));
    let indexer = IndexerShape::checked(indexer, &config.text, (&attention, rope.spec.dims))?;
    let full_indexers = match (indexer, &described) {
        (Some(_), Some(it)) => it.full_layers(&config.text, (layers, layers + mtp_layers))?,
        _ => Vec::new(),
    };
    let attention = AttentionShape { indexer, ..attention };
    Ok(ModelConfig {
        circuit: family.circuit.to_owned(),
        architecture: architecture(&top),
        // Only for display, so a value of another type is not an error.
        name: top.text("_name_or_path").ok().flatten().filter(|name| !name.is_empty()),
        vocab_size,
        hidden_size,
        layers,
        mtp_layers,
        context_length,
        rms_eps: config.rms_eps()?,
        attention: AttentionShape { temperature: hf_rope::temperature(&config.text)?, ..attention },
        attention_bias: config.text.flag("attention_bias")?.unwrap_or(false),
        index_topk,
        full_indexers,
        kda,
        rope: rope.spec,
        layer_kinds,
        intermediate_size,
        activation: config.activation()?,
        moe,
        embedding_scale: scales[0],
        residual_scale: scales[1],
        logits_scale: scales[2],
        tied_embeddings: config.tied()?,
        // All safetensors store one `kv_b_proj`.
        kv_form: KvForm::Combined,
        query_gate: family.query_gate.then_some(QueryGate::Fused),
        norm_rank: config.norm_rank()?,
        part: None,
    })
}

/// Warnings about keys of config.json that other data in the folder overrides.
pub(super) fn warnings(
    keys: &dyn MetadataKeys,
    tensors: &dyn ConfigTensors,
) -> Result<Vec<String>, ConfigError> {
    let (family, text) = find_family(&Reader::json(keys))?;
    let text = text.spelled(family.keys);
    let config = HfConfig { family, text, tensors, prefix: prefix(tensors, family), attention_layer: 0 };
    let rope = hf_rope::replaced(&config.text, family)?;
    Ok(config.stored_head()?.into_iter().chain(rope).collect())
}

/// The family of a config.json.
pub(super) fn family(keys: &dyn MetadataKeys) -> Result<&'static ModelFamily, ConfigError> {
    find_family(&Reader::json(keys)).map(|(family, _)| family)
}

/// The keys of the language model in a config.json.
pub(super) fn text(keys: &dyn MetadataKeys) -> Result<Reader<'_>, ConfigError> {
    find_family(&Reader::json(keys)).map(|(_, text)| text)
}

/// The architecture by the file: `model_type`, otherwise the first of `architectures`.
fn architecture(top: &Reader<'_>) -> String {
    let listed = || match top.field("architectures") {
        Some(MetadataValue::List(names)) => names.iter().find_map(|name| match name {
            MetadataValue::Text(name) => Some(name.clone()),
            _ => None,
        }),
        _ => None,
    };
    top.text("model_type").ok().flatten().or_else(listed).unwrap_or_else(|| "(no model_type)".to_owned())
}

/// The family, and the keys of the language model. Vision-language models have the latter in a
/// nested object.
fn find_family<'a>(top: &Reader<'a>) -> Result<(&'static ModelFamily, Reader<'a>), ConfigError> {
    let nested =
        families::NESTED.into_iter().find(|key| matches!(top.field(key), Some(MetadataValue::Object(_))));
    let text = nested.map_or_else(|| top.clone(), |key| top.within(&format!("{key}.")));
    // The nested config first. Some have no `model_type`, and then the outer class decides.
    for reader in [&text, top] {
        let name = architecture(reader);
        // Some folders have a class and no `model_type`; `architecture` then returns the class.
        if let Some(family) = families::by_model_type(&name).or_else(|| families::by_class(&name)) {
            return Ok((family, text.clone()));
        }
    }
    let known = families::known_model_types().map(str::to_owned).collect();
    Err(ConfigError::Unsupported { file: top.file(), architecture: architecture(&text), known })
}

/// The prefix of tensor names. Vision-language models store their language model under a prefix.
fn prefix(tensors: &dyn ConfigTensors, family: &ModelFamily) -> &'static str {
    let name = family.names.stored("model.embed_tokens.weight");
    let embeds = |prefix: &&str| tensors.has(&format!("{prefix}{name}"));
    // Without an embedding under any prefix, the plain name makes the clearest error.
    HF_PREFIXES.into_iter().find(embeds).unwrap_or("")
}

impl HfConfig<'_> {
    fn embedding(&self) -> Result<(String, [usize; 2]), ConfigError> {
        let name = self.tensor("model.embed_tokens.weight");
        let Some(shape) = self.tensors.shape(&name) else {
            // The names of a Transformers class instead of the published ones.
            let other = format!("model.language_model.{}", name.trim_start_matches("model."));
            let hint = match self.tensors.has(&other) {
                true => format!(
                    "the folder has {other}, a name of a Transformers class; expected the published names, \
                     model.… or language_model.model.…: save it again with Transformers 5, or rename its \
                     tensors"
                ),
                false => "it is the embedding, which every model needs".into(),
            };
            return Err(self.text.missing_tensor(&name, hint));
        };
        match shape[..] {
            [rows, columns] => Ok((name, [rows, columns])),
            _ => Err(self.text.wrong_shape(&name, &shape, "two dimensions: [vocab_size, hidden_size]")),
        }
    }

    fn vocab_size(&self) -> Result<usize, ConfigError> {
        let vocab = self.text.need(&keys::VOCABULARY)?;
        let (name, [rows, _]) = self.embedding()?;
        if rows == vocab {
            return Ok(vocab);
        }
        Err(self.text.wrong("vocab_size", vocab, format!("{rows}, the rows of tensor {name}")))
    }

    fn hidden_size(&self) -> Result<usize, ConfigError> {
        let hidden = self.text.need(&keys::HIDDEN)?;
        let (name, [_, columns]) = self.embedding()?;
        if columns == hidden {
            return Ok(hidden);
        }
        Err(self.text.wrong("hidden_size", hidden, format!("{columns}, the columns of tensor {name}")))
    }

    /// MTP layers that are stored. Only tensors count: `num_nextn_predict_layers` claims more than
    /// most files contain (Moonlight), and is missing from some that contain one (GLM-4.7-Flash).
    fn mtp_layers(&self, layers: usize) -> Result<usize, ConfigError> {
        // Read for its check only: a value of a wrong type is an error.
        self.text.get(&keys::MTP_LAYERS)?;
        let holds = |layer: &usize| self.tensors.has(&self.layer_tensor(*layer, "eh_proj.weight"));
        let count = (layers..=*limits::LAYERS.end()).take_while(holds).count();
        let all = layers + count;
        if limits::LAYERS.contains(&all) {
            return Ok(count);
        }
        let expected =
            format!("at most {} layers with the multi-token-prediction layers", limits::LAYERS.end());
        Err(self.text.wrong("num_hidden_layers", layers, expected))
    }

    fn head_width(&self, key: &str) -> Result<usize, ConfigError> {
        self.text.need_size(key, limits::HEAD_WIDTH, "the width of one part of an attention head")
    }

    fn attention(&self, rope: usize, score_scale: f64) -> Result<AttentionShape, ConfigError> {
        let text = &self.text;
        let heads = text.need(&keys::HEADS)?;
        let (nope, v) = (self.head_width("qk_nope_head_dim")?, self.head_width("v_head_dim")?);
        // Redundant key of GLM-5 and Mistral Small 4. If it contradicts its parts, the softmax
        // scale would be ambiguous.
        if let Some(whole) = text.size("qk_head_dim", limits::WHOLE_HEAD)?
            && whole != nope + rope
        {
            let expected = format!("{}: qk_nope_head_dim + qk_rope_head_dim", nope + rope);
            return Err(text.wrong("qk_head_dim", whole, expected));
        }
        let shape = AttentionShape {
            heads,
            q_lora_rank: self.q_lora_rank()?,
            kv_lora_rank: text.need(&keys::KV_RANK)?,
            nope,
            rope,
            v,
            softmax_scale: score_scale / ((nope + rope) as f64).sqrt(),
            temperature: None,
            output_gate: None,
            indexer: None,
        };
        let shape = AttentionShape { output_gate: self.output_gate(&shape)?, ..shape };
        self.check_latent(&shape)?;
        Ok(shape)
    }

    fn q_lora_rank(&self) -> Result<Option<usize>, ConfigError> {
        let rank = self.text.get(&keys::Q_RANK)?.filter(|rank| *rank > 0);
        let tensor = self.layer_tensor(self.attention_layer, "self_attn.q_a_proj.weight");
        match (rank, self.tensors.shape(&tensor)) {
            (Some(rank), Some(shape)) if shape.first() != Some(&rank) => {
                Err(self.text.wrong_shape(&tensor, &shape, format!("{rank} outputs, the q_lora_rank")))
            }
            (Some(_), None) => Err(self
                .text
                .missing_tensor(&tensor, "q_lora_rank requires a low-rank projection of the queries")),
            // null means direct projection. With the tensor stored, running without it would be
            // wrong.
            (None, Some(shape)) => {
                let hint =
                    format!("it is the rank of the queries' projection; tensor {tensor} has {shape:?}");
                Err(self.text.missing("q_lora_rank", hint))
            }
            _ => Ok(rank),
        }
    }

    /// The gate on attention's output. Kimi-K3's key `mla_use_output_gate` or the family requests
    /// it; otherwise the stored tensor decides.
    fn output_gate(&self, a: &AttentionShape) -> Result<Option<OutputGate>, ConfigError> {
        match (self.text.flag("mla_use_output_gate")?, self.family.gate) {
            // Kimi-K3: a gate per element.
            (Some(true), _) => return Ok(Some(OutputGate::PerElement)),
            (Some(false), _) => return Ok(None),
            (None, Some(gate)) => return Ok(Some(gate)),
            (None, None) => {}
        }
        let tensor = self.layer_tensor(self.attention_layer, "self_attn.g_proj.weight");
        let Some(stored) = self.tensors.shape(&tensor) else { return Ok(None) };
        a.gate_of(stored.first().copied())
            .map(Some)
            .map_err(|expected| self.text.wrong_shape(&tensor, &stored, expected))
    }

    /// Checks the outputs of the latent's projections and of the gate, in the first layer with
    /// latent attention.
    fn check_latent(&self, a: &AttentionShape) -> Result<(), ConfigError> {
        let wanted = [
            (
                "self_attn.kv_a_proj_with_mqa.weight",
                a.kv_lora_rank + a.rope,
                "kv_lora_rank + qk_rope_head_dim",
            ),
            (
                "self_attn.kv_b_proj.weight",
                a.heads * (a.nope + a.v),
                "num_attention_heads · (qk_nope_head_dim + v_head_dim)",
            ),
        ];
        let fused = "num_attention_heads · (qk_head_dim + v_head_dim), queries and gates";
        let query_gate = self.family.query_gate.then_some((
            "self_attn.q_b_proj.weight",
            a.heads * (a.nope + a.rope + a.v),
            fused,
        ));
        // With `query_gate`, the gates are outputs of `q_b_proj`, which is checked in full.
        let gate = a.gate_width().filter(|_| !self.family.query_gate).map(|gates| {
            let meaning = match a.output_gate {
                Some(OutputGate::PerElement) => "num_attention_heads · v_head_dim, a gate for each element",
                _ => "num_attention_heads, a gate for each",
            };
            ("self_attn.g_proj.weight", gates, meaning)
        });
        for (name, outputs, meaning) in wanted.into_iter().chain(gate).chain(query_gate) {
            let tensor = self.layer_tensor(self.attention_layer, name);
            let Some(shape) = self.tensors.shape(&tensor) else {
                return Err(self.text.missing_tensor(&tensor, "Multi-head Latent Attention needs it"));
            };
            if shape.first() != Some(&outputs) {
                return Err(self.text.wrong_shape(&tensor, &shape, format!("{outputs} outputs: {meaning}")));
            }
        }
        Ok(())
    }

    /// Rank of the gates of the layers' norms, if the family has them (A.X-K2).
    fn norm_rank(&self) -> Result<Option<usize>, ConfigError> {
        let Some(default) = self.family.norm_rank else { return Ok(None) };
        let rank = self.text.get(&keys::NORM_RANK)?.unwrap_or(default);
        let tensor = self.layer_tensor(self.attention_layer, "input_layernorm.W_down.weight");
        match self.tensors.shape(&tensor) {
            None => {
                Err(self.text.missing_tensor(&tensor, "the norms of every layer have a gate of low rank"))
            }
            Some(shape) if shape.first() != Some(&rank) => {
                Err(self.text.wrong_shape(&tensor, &shape, format!("{rank} outputs, the gated_norm_rank")))
            }
            Some(_) => Ok(Some(rank)),
        }
    }

    fn rms_eps(&self) -> Result<f64, ConfigError> {
        match (self.text.get(&keys::RMS_EPS)?, self.family.rms_eps) {
            // DeepSeek-VL2 omits the key. Without a family default it is required, as a wrong
            // epsilon changes all logits a little.
            (Some(eps), _) | (None, Some(eps)) => Ok(eps),
            (None, None) => Err(self.text.missing_key(&keys::RMS_EPS)),
        }
    }

    fn intermediate_size(&self, kinds: &[LayerKind]) -> Result<usize, ConfigError> {
        let dense = kinds.contains(&LayerKind::Dense);
        let size = self.text.size("intermediate_size", usize::from(dense)..=limits::INTERMEDIATE)?;
        match size {
            _ if !dense => Ok(0),
            Some(size) => Ok(size),
            None => Err(self
                .text
                .missing("intermediate_size", "it is the width of the dense feed-forward blocks")),
        }
    }

    fn activation(&self) -> Result<FfnActivation, ConfigError> {
        // The family decides. The key only confirms it, and some files omit it.
        let (names, activation): (&[&str], _) = match self.family.activation {
            FfnActivation::SiluGated => (&["silu", "swish"], FfnActivation::SiluGated),
            FfnActivation::ReluSquared => {
                (&["relu2", "squared_relu", "relu_squared"], FfnActivation::ReluSquared)
            }
        };
        match self.text.text("hidden_act")? {
            Some(name) if !names.contains(&name.as_str()) => {
                Err(self.text.not_computed("hidden_act", format!("{name:?}"), format!("{:?}", names[0])))
            }
            _ => Ok(activation),
        }
    }

    /// Factors on embedding, residual stream and final row. MiniCPM3's code divides the final row
    /// by hidden_size / dim_model_base.
    fn scales(&self, layers: usize, hidden: usize) -> Result<[f64; 3], ConfigError> {
        if !self.family.scaled {
            return Ok([1.0; 3]);
        }
        let embedding =
            self.text.need_real("scale_emb", limits::MODEL_SCALE, "the factor on embedding rows")?;
        let depth =
            self.text.need_real("scale_depth", limits::MODEL_SCALE, "the residual factor times √layers")?;
        let base =
            self.text.need_size("dim_model_base", limits::HIDDEN, "the logits' factor times hidden_size")?;
        Ok([embedding, depth / (layers as f64).sqrt(), base as f64 / hidden as f64])
    }

    /// Whether the head is the embedding: if no head is stored, as in Transformers. Fine-tunes
    /// store their own head and leave `tie_word_embeddings` true. Names of tensors are known on
    /// every rank and for headers alone, unlike values.
    fn tied(&self) -> Result<bool, ConfigError> {
        let tensor = self.tensor("lm_head.weight");
        let head = self.tensors.has(&tensor);
        if self.text.flag("tie_word_embeddings")? == Some(false) && !head {
            let hint = "tie_word_embeddings is false, so the head must be stored";
            return Err(self.text.missing_tensor(&tensor, hint));
        }
        Ok(!head)
    }

    /// A warning if a head with other values is stored although the config says that it is the
    /// embedding.
    fn stored_head(&self) -> Result<Option<String>, ConfigError> {
        let (embedding, head) = (self.tensor("model.embed_tokens.weight"), self.tensor("lm_head.weight"));
        let tied = self.text.flag("tie_word_embeddings")? == Some(true);
        let differs = tied && self.tensors.has(&head) && self.tensors.equal(&embedding, &head) != Some(true);
        let warning = || {
            format!(
                "{}: tie_word_embeddings is true, but {head} is stored with values of its own, which are used; set \
                 tie_word_embeddings to false",
                self.text.file()
            )
        };
        Ok(differs.then(warning))
    }
}
