//! Reads a `ModelConfig` from GGUF metadata with the keys of llama.cpp's converters, checked
//! against the file's tensors.
use super::error::ConfigError;
use super::gguf_file::{ARCHITECTURES, GgufConfig};
use super::gguf_moe;
use super::gguf_rope;
use super::indexer::Indexer;
use super::keys;
use super::limits;
use super::reader::Reader;
use super::source::{ConfigTensors, MetadataKeys};
use super::{AttentionShape, IndexerShape, KvForm, ModelConfig, OutputGate, QueryGate, Temperature};

/// Reads the config of a GGUF file.
pub(super) fn read(keys: &dyn MetadataKeys, tensors: &dyn ConfigTensors) -> Result<ModelConfig, ConfigError> {
    let general = Reader::gguf(keys, "general.");
    let Some(name) = general.text("architecture")? else {
        return Err(general.missing("architecture", "it determines how all other keys are read"));
    };
    let Some(architecture) = ARCHITECTURES.iter().find(|a| a.name == name) else {
        let known = ARCHITECTURES.iter().map(|a| a.name.to_owned()).collect();
        return Err(ConfigError::Unsupported { file: general.file(), architecture: name, known });
    };
    let gguf = GgufConfig {
        keys: Reader::gguf(keys, &format!("{name}.")),
        whole: Reader::gguf(keys, ""),
        tensors,
        architecture,
        attention_layer: 0,
    };
    let (vocab_size, hidden_size) = gguf.embedding()?;
    let (layers, mtp_layers, blocks) = gguf.layers()?;
    // Kimi-Linear and Ling-3.0 start with recurrent layers, so layer 0 has no latent attention. The
    // first layer that has it decides the sizes.
    let recurrent = gguf.recurrent_layers(layers, mtp_layers, blocks)?;
    let attention_layer = recurrent.iter().position(|recurrent| !recurrent).unwrap_or(0);
    let gguf = GgufConfig { attention_layer, ..gguf };
    // Needed before the rope: YaRN and LongRoPE use it if the file states no original context.
    let context_length = gguf.keys.need(&keys::CONTEXT)?;
    let temperature = gguf.temperature()?;
    let shape = gguf.attention(hidden_size, blocks)?;
    // Kimi-Linear has a shared key of `rope` elements and does not rotate it.
    let turned = if architecture.rotates { shape.rope } else { 0 };
    let rope = gguf_rope::read(&gguf, turned, context_length, temperature.is_some())?;
    let (kv_form, shape) = gguf.expansion(shape, hidden_size)?;
    // Only A.X-K2 has gated norms, and with them a gate computed from the query's latent.
    let (query_gate, output_gate) = match architecture.gated_norms {
        true => (Some(gguf.query_gate(&shape)?), Some(OutputGate::PerElement)),
        false => (None, gguf.output_gate(&shape, hidden_size)?),
    };
    let shape = AttentionShape { output_gate, ..shape };
    // `blocks` counts MTP layers that the file may lack, and per-layer lists have an entry for
    // each.
    let layer_kinds = gguf_moe::layer_kinds(&gguf, layers, mtp_layers, blocks)?;
    let softmax_scale = rope.score_scale / ((shape.nope + shape.rope) as f64).sqrt();
    let [embedding_scale, residual_scale, logits_scale] = gguf.scales(layers, hidden_size)?;
    let index_topk = gguf.keys.get(&keys::INDEX_TOPK)?;
    let described = Indexer::of_gguf(&gguf.keys)?;
    let indexer =
        described.as_ref().zip(index_topk).map(|(it, topk)| it.shape(topk, architecture.index_pairs));
    let indexer = IndexerShape::checked(indexer, &gguf.keys, (&shape, rope.spec.dims))?;
    let full_indexers = match (indexer, &described) {
        (Some(_), Some(it)) => it.full_layers(&gguf.keys, (layers, layers + mtp_layers))?,
        _ => Vec::new(),
    };
    Ok(ModelConfig {
        circuit: architecture.circuit.to_owned(),
        architecture: name,
        name: general.text("name")?,
        vocab_size,
        hidden_size,
        layers,
        mtp_layers,
        context_length,
        rms_eps: gguf.keys.need(&keys::RMS_EPS)?,
        attention: AttentionShape { softmax_scale, temperature, indexer, ..shape },
        // GGUF has no key for it. `attention_bias` models store a bias for this projection in every
        // layer.
        attention_bias: tensors.has(&gguf.attention_tensor("attn_kv_a_mqa.bias")),
        index_topk,
        full_indexers,
        kda: gguf.kda(recurrent)?,
        rope: super::RopeSpec { pairs: architecture.pairs, ..rope.spec },
        intermediate_size: gguf_moe::intermediate_size(&gguf, &layer_kinds, blocks)?,
        activation: architecture.activation,
        moe: gguf_moe::read(&gguf, &layer_kinds[..layers], hidden_size, blocks)?,
        layer_kinds,
        embedding_scale,
        residual_scale,
        logits_scale,
        // As in llama.cpp: without `output.weight` the head is the embedding.
        tied_embeddings: !tensors.has("output.weight"),
        kv_form,
        query_gate,
        norm_rank: gguf.norm_rank(hidden_size)?,
        part: None,
    })
}

/// Factors on embedding, residual stream and final row of MiniCPM3-4B: scale_emb 12, scale_depth
/// 1.4, dim_model_base 256. llama.cpp has them as constants for the architecture.
pub(super) fn usual_scales(layers: usize, hidden: usize) -> [f64; 3] {
    [12.0, 1.4 / (layers as f64).sqrt(), 256.0 / hidden as f64]
}

impl GgufConfig<'_> {
    /// Vocabulary and hidden size by the embedding's shape. All keys must agree with it.
    fn embedding(&self) -> Result<(usize, usize), ConfigError> {
        let tensor = "token_embd.weight";
        let Some(shape) = self.tensors.shape(tensor) else {
            let hint = "it is the embedding; a vocabulary-only file cannot run";
            return Err(self.keys.missing_tensor(tensor, hint));
        };
        let [rows, columns] = shape[..] else {
            return Err(self.keys.wrong_shape(
                tensor,
                &shape,
                "two dimensions: [vocabulary, embedding_length]",
            ));
        };
        let hidden = self.keys.need(&keys::HIDDEN)?;
        // Every key that claims a size is checked against the tensor.
        if hidden != columns {
            let expected = format!("{columns}, the columns of tensor {tensor}");
            return Err(self.keys.wrong("embedding_length", hidden, expected));
        }
        if !limits::VOCABULARY.contains(&rows) {
            let expected = format!("at most {} rows", limits::VOCABULARY.end());
            return Err(self.keys.wrong_shape(tensor, &shape, expected));
        }
        // The tokenizer's list is checked here too: a token id beyond the embedding would otherwise
        // fail in the middle of a generation.
        let claims = [
            (&self.keys, "vocab_size", self.keys.get(&keys::VOCABULARY)?),
            (&self.whole, "tokenizer.ggml.tokens", self.whole.count("tokenizer.ggml.tokens")?),
        ];
        for (reader, key, claim) in claims {
            if let Some(claim) = claim
                && claim != rows
            {
                let expected = format!("{rows} tokens, the rows of tensor {tensor}");
                return Err(reader.wrong(key, format!("{claim} tokens"), expected));
            }
        }
        Ok((rows, hidden))
    }

    /// Decoder layers, stored MTP layers, and blocks by the keys, which count both.
    fn layers(&self) -> Result<(usize, usize, usize), ConfigError> {
        let blocks = self.keys.need(&keys::LAYERS)?;
        let stored = |block: usize| self.tensors.has(&format!("blk.{block}.nextn.eh_proj.weight"));
        let claimed = self.keys.get(&keys::MTP_LAYERS)?;
        // Some files claim MTP layers in `nextn_predict_layers` that are decoder layers or are
        // missing. A layer without `eh_proj` is a decoder layer, whatever the key says.
        let decodes =
            |block: usize| !stored(block) && self.tensors.has(&format!("blk.{block}.attn_norm.weight"));
        // MTP layers are at the end of a file, so only a run of trailing blocks counts.
        let last = |is: &dyn Fn(usize) -> bool| (0..blocks).rev().take_while(|block| is(*block)).count();
        let mtp = match claimed {
            Some(claimed) => claimed.min(last(&|block| !decodes(block))),
            None => last(&stored),
        };
        // At least one decoder layer must remain.
        if mtp >= blocks {
            let expected = format!("less than {blocks}, the {}", self.keys.name("block_count"));
            return Err(self.keys.wrong("nextn_predict_layers", mtp, expected));
        }
        let layers = blocks - mtp;
        // An MTP layer before the last decoder layer: the key counts too few.
        if let Some(block) = (0..layers).find(|block| stored(*block)) {
            let expected = format!("{}: block {block} has tensor nextn.eh_proj", blocks - block);
            return Err(self.keys.wrong("nextn_predict_layers", mtp, expected));
        }
        // Of the claimed MTP layers, only stored ones count: the converter may have dropped them.
        Ok((layers, (layers..blocks).take_while(|block| stored(*block)).count(), blocks))
    }

    /// Factors on embedding, residual stream and final row: by keys, or MiniCPM3-4B's. llama.cpp
    /// reads such keys for other architectures only; Latent's converter writes them for models with
    /// other factors.
    fn scales(&self, layers: usize, hidden: usize) -> Result<[f64; 3], ConfigError> {
        if !self.architecture.scaled {
            return Ok([1.0; 3]);
        }
        let [embedding, residual, logits] = usual_scales(layers, hidden);
        let scale = |key| self.keys.real(key, limits::MODEL_SCALE);
        Ok([
            scale("embedding_scale")?.unwrap_or(embedding),
            scale("residual_scale")?.unwrap_or(residual),
            // llama.cpp's `logit_scale` divides.
            scale("logit_scale")?.map_or(logits, |scale| 1.0 / scale),
        ])
    }

    fn temperature(&self) -> Result<Option<Temperature>, ConfigError> {
        let scale = self.keys.real("attention.temperature_scale", limits::TEMPERATURE)?;
        // mistral4: converters omit the scale. Its length is the original context of YaRN.
        if let (None, Some(scale)) = (scale, self.architecture.temperature) {
            let length = self.keys.size("rope.scaling.original_context_length", limits::CONTEXT)?;
            return Ok(length.map(|length| Temperature { scale, length }));
        }
        // deepseek2 with a temperature is Mistral Large 3.
        let Some(scale) = scale.filter(|scale| *scale != 0.0 && self.architecture.deepseek) else {
            return Ok(None);
        };
        let hint = "the number of positions with the same attention temperature";
        let length = self.keys.need_size("attention.temperature_length", limits::CONTEXT, hint)?;
        Ok(Some(Temperature { scale, length }))
    }

    /// Sizes by the keys. `v` is 0 if only a tensor states it.
    fn attention(&self, hidden: usize, blocks: usize) -> Result<AttentionShape, ConfigError> {
        let reader = &self.keys;
        let Some(heads) = self.uniform(keys::HEADS.gguf, limits::HEADS, blocks)? else {
            return Err(reader.missing_key(&keys::HEADS));
        };
        if let Some(kv) = self.latent_heads(blocks)?
            // llama.cpp's converter writes 1 (multi-query over latents) since April 2025, and the
            // number of heads before.
            && kv != 1
            && kv != heads
        {
            return Err(reader.wrong(
                "attention.head_count_kv",
                kv,
                format!("1 (one latent for all heads) or {heads}"),
            ));
        }
        let rope = reader.need(&keys::ROPE_WIDTH)?;
        // Checked before anything divides by two.
        if rope % 2 != 0 {
            return Err(reader.wrong(
                "rope.dimension_count",
                rope,
                "an even number: rotated elements come in pairs",
            ));
        }
        let (whole_key, whole, v) = self.head_keys()?;
        // Otherwise `nope` would be 0 or negative.
        if whole <= rope {
            let expected = format!("more than {rope}, the {}", reader.name("rope.dimension_count"));
            return Err(reader.wrong(whole_key, whole, expected));
        }
        let kv_lora_rank = reader.need(&keys::KV_RANK)?;
        let shape = AttentionShape {
            heads,
            q_lora_rank: self.q_lora_rank(hidden)?,
            kv_lora_rank,
            nope: whole - rope,
            rope,
            v: v.unwrap_or(0),
            softmax_scale: 0.0,
            temperature: None,
            output_gate: None,
            indexer: None,
        };
        self.check(
            &self.attention_tensor("attn_kv_a_mqa.weight"),
            &[kv_lora_rank + rope, hidden],
            "[kv_lora_rank + rope, embedding_length]",
        )?;
        Ok(shape)
    }

    /// Widths of a query head and of a value, and the key of the former. In files without `*_mla`
    /// keys these are `key_length` and `value_length`, which in newer files describe the cached
    /// row.
    fn head_keys(&self) -> Result<(&'static str, usize, Option<usize>), ConfigError> {
        let keys = &self.keys;
        // llama.cpp treats 0 as absent.
        let zero = |range: std::ops::RangeInclusive<usize>| 0..=*range.end();
        let key = keys.size("attention.key_length_mla", zero(limits::WHOLE_HEAD))?.filter(|n| *n > 0);
        let value = keys.size("attention.value_length_mla", zero(limits::HEAD_WIDTH))?.filter(|n| *n > 0);
        match (key, value) {
            (Some(key), Some(value)) => Ok(("attention.key_length_mla", key, Some(value))),
            (Some(_), None) => {
                Err(keys.missing("attention.value_length_mla", "attention.key_length_mla requires it"))
            }
            // One `*_mla` key without the other would mix two conventions.
            (None, Some(_)) => {
                Err(keys.missing("attention.key_length_mla", "attention.value_length_mla requires it"))
            }
            (None, None) => {
                let stored = |name| self.tensors.has(&self.attention_tensor(name));
                // Split tensors came with the `*_mla` keys. `key_length` would be the width of the
                // cached row and give a wrong scale.
                if !stored("attn_kv_b.weight") && stored("attn_k_b.weight") {
                    let hint = "it is the width of a query head in files with split attn_k_b and attn_v_b";
                    return Err(keys.missing("attention.key_length_mla", hint));
                }
                let key =
                    keys.need_size("attention.key_length", limits::WHOLE_HEAD, "the width of a query head")?;
                Ok(("attention.key_length", key, keys.size("attention.value_length", limits::HEAD_WIDTH)?))
            }
        }
    }

    /// How queries and output gates are computed from the query's latent: by two matrices, as
    /// llama.cpp's converter writes them, or by the single matrix of the published safetensors.
    fn query_gate(&self, a: &AttentionShape) -> Result<QueryGate, ConfigError> {
        let Some(rank) = a.q_lora_rank else {
            return Err(self
                .keys
                .missing("attention.q_lora_rank", "the output gate is computed from this latent"));
        };
        let (queries, gate) =
            (self.attention_tensor("attn_q_b.weight"), self.attention_tensor("attn_gate.weight"));
        // A `q_b` with twice the latent as inputs is the published matrix. It is recognized by
        // shape, because no key tells.
        if !self.tensors.has(&gate)
            && self.tensors.shape(&queries).is_none_or(|shape| shape.last() != Some(&rank))
        {
            let wanted = [a.heads * (a.nope + a.rope + a.v), 2 * rank];
            self.check(
                &queries,
                &wanted,
                "[head_count · (key_length_mla + value_length_mla), 2 · q_lora_rank]",
            )?;
            return Ok(QueryGate::Fused);
        }
        self.check(&gate, &[a.heads * a.v, rank], "[head_count · value_length_mla, q_lora_rank]")?;
        Ok(QueryGate::Separate)
    }

    /// Rank of the gates of the layers' norms, if the architecture has them.
    fn norm_rank(&self, hidden: usize) -> Result<Option<usize>, ConfigError> {
        if !self.architecture.gated_norms {
            return Ok(None);
        }
        let rank = self.keys.need(&keys::NORM_RANK)?;
        let tensor = self.attention_tensor("attn_norm_gate_a.weight");
        self.check(&tensor, &[rank, hidden], "[gated_norm_rank, embedding_length]")?;
        Ok(Some(rank))
    }

    /// The output gate. GGUF has no key for it; its tensor and the number of outputs decide.
    fn output_gate(&self, a: &AttentionShape, hidden: usize) -> Result<Option<OutputGate>, ConfigError> {
        let tensor = &self.attention_tensor("attn_gate.weight");
        let Some(stored) = self.tensors.shape(tensor) else { return Ok(None) };
        let kind = a.gate_of(stored.first().copied().filter(|_| stored.get(1) == Some(&hidden)));
        kind.map(Some).map_err(|expected| self.keys.wrong_shape(tensor, &stored, expected))
    }

    /// The query's rank. Missing or 0 means direct projection, unless `attn_q_a` is stored.
    fn q_lora_rank(&self, hidden: usize) -> Result<Option<usize>, ConfigError> {
        let claimed = self.keys.get(&keys::Q_RANK)?;
        let tensor = &self.attention_tensor("attn_q_a.weight");
        let stored = self.tensors.shape(tensor);
        match (claimed, stored) {
            // Latent's converter writes 0, without which llama.cpp loads such models only with
            // certain numbers of layers.
            (None | Some(0), None) => Ok(None),
            // Files without the key: the tensor states the rank.
            (None, Some(shape)) => match shape[..] {
                [rank, columns] if columns == hidden && limits::RANK.contains(&rank) => Ok(Some(rank)),
                _ => Err(self.keys.wrong_shape(tensor, &shape, format!("[q_lora_rank, {hidden}]"))),
            },
            // Ignoring the tensor would run another model than the one stored.
            (Some(0), Some(shape)) => {
                let expected = format!("the outputs of tensor {tensor}, whose shape is {shape:?}");
                Err(self.keys.wrong("attention.q_lora_rank", 0, expected))
            }
            (Some(rank), _) => {
                self.check(tensor, &[rank, hidden], "[q_lora_rank, embedding_length]")?;
                Ok(Some(rank))
            }
        }
    }

    /// How W_UK and W_UV are stored, and the shape with the value width, which in old files only a
    /// tensor states.
    fn expansion(
        &self,
        shape: AttentionShape,
        hidden: usize,
    ) -> Result<(KvForm, AttentionShape), ConfigError> {
        let [split, combined] =
            &["attn_k_b.weight", "attn_kv_b.weight"].map(|name| self.attention_tensor(name));
        let AttentionShape { heads, nope, kv_lora_rank, .. } = shape;
        // A file may contain both forms. With the `*_mla` keys the halves count, as in llama.cpp.
        let modern = self.keys.mentions("attention.key_length_mla");
        if self.tensors.has(split) && (modern || !self.tensors.has(combined)) {
            self.check(
                split,
                &[heads, kv_lora_rank, nope],
                "[head_count, kv_lora_rank, key_length_mla − rope]",
            )?;
            let v_b = [heads, shape.v, kv_lora_rank];
            self.check(
                &self.attention_tensor("attn_v_b.weight"),
                &v_b,
                "[head_count, value_length_mla, kv_lora_rank]",
            )?;
            return Ok((KvForm::Separate, shape));
        }
        let Some(stored) = self.tensors.shape(combined) else {
            let hint =
                format!("it expands the latent to keys and values (alternatively: {split} and attn_v_b)");
            return Err(self.keys.missing_tensor(combined, hint));
        };
        // Without a key: the outputs per head minus nope. `hidden / heads` only fills in for the
        // error message of the check below.
        let v = match (shape.v, stored.first()) {
            (0, Some(outputs)) if outputs % heads == 0 && outputs / heads > nope => outputs / heads - nope,
            (0, _) => hidden / heads,
            (v, _) => v,
        };
        self.check(
            combined,
            &[heads * (nope + v), kv_lora_rank],
            "[head_count · (nope + value width), kv_lora_rank]",
        )?;
        if !limits::HEAD_WIDTH.contains(&v) {
            return Err(self.keys.wrong_shape(
                combined,
                &stored,
                "a value width of at least 1 and at most 4096",
            ));
        }
        Ok((KvForm::Combined, AttentionShape { v, ..shape }))
    }
}
