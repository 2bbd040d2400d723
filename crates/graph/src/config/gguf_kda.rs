//! Layers of Kimi Delta Attention (Kimi-Linear, Ling-3.0) in a GGUF file.

use super::error::ConfigError;
use super::gguf_file::GgufConfig;
use super::limits;
use super::source::MetadataValue;
use super::{DecayRate, KdaShape};

/// Taps of a convolution without a key, as in all published models.
const DEFAULT_TAPS: usize = 4;

/// Keys that clamp activations of experts, which no operation supports.
const CLAMPS: [&str; 2] = ["swiglu_clamp_exp", "swiglu_clamp_shexp"];

impl GgufConfig<'_> {
    /// Whether each layer, MTP layers included, has a recurrent state. llama.cpp marks such a layer
    /// by a `head_count_kv` of 0.
    pub(super) fn recurrent_layers(
        &self,
        layers: usize,
        mtp_layers: usize,
        blocks: usize,
    ) -> Result<Vec<bool>, ConfigError> {
        let all = layers + mtp_layers;
        if self.architecture.rates.is_none() {
            return Ok(vec![false; all]);
        }
        // The tensor decides, because the key may be a single number. A list must agree with it.
        let stored = |layer: usize| self.tensors.has(&format!("blk.{layer}.ssm_a"));
        let key = "attention.head_count_kv";
        let heads = self.keys.sizes(key, 0..=*limits::HEADS.end(), blocks)?;
        // A single number counts the heads of the latent layers and marks no layer.
        let listed = heads.filter(|_| matches!(self.keys.field(key), Some(MetadataValue::List(_))));
        for (layer, heads) in listed.iter().flatten().enumerate().take(all) {
            if (*heads == 0) != stored(layer) {
                let is = if *heads == 0 { "missing" } else { "stored" };
                let expected =
                    format!("0 for layers with a recurrent state: tensor blk.{layer}.ssm_a is {is}");
                return Err(self.keys.wrong(key, format!("{heads} for layer {layer}"), expected));
            }
        }
        let recurrent: Vec<bool> = (0..all).map(stored).collect();
        // The sizes of latent attention come from its first layer, so one must exist.
        if recurrent.iter().take(layers).all(|recurrent| *recurrent) {
            let value = "a recurrent state in every layer";
            return Err(self.keys.not_computed(key, value, "at least one layer with latent attention"));
        }
        for key in CLAMPS {
            let limits = match self.keys.field(key) {
                Some(MetadataValue::List(limits)) => limits,
                Some(limit) => vec![limit],
                None => continue,
            };
            // 0 means no clamp.
            let acts = |limit: &MetadataValue| {
                !matches!(limit, MetadataValue::Integer(0)) && *limit != MetadataValue::Real(0.0)
            };
            if let Some(limit) = limits.into_iter().find(acts) {
                return Err(self.keys.not_computed(key, limit, "0: clamped activations are not supported"));
            }
        }
        Ok(recurrent)
    }

    /// Key and value heads of layers with latent attention.
    pub(super) fn latent_heads(&self, blocks: usize) -> Result<Option<usize>, ConfigError> {
        let key = "attention.head_count_kv";
        if self.architecture.rates.is_none() {
            return self.uniform(key, limits::HEADS, blocks);
        }
        let heads = self.keys.sizes(key, 0..=*limits::HEADS.end(), blocks)?;
        Ok(heads.and_then(|heads| heads.into_iter().find(|heads| *heads > 0)))
    }

    /// Sizes of the layers with a recurrent state; `None` without such layers.
    pub(super) fn kda(&self, layers: Vec<bool>) -> Result<Option<Box<KdaShape>>, ConfigError> {
        let Some(first) = layers.iter().position(|recurrent| *recurrent) else { return Ok(None) };
        let keys = &self.keys;
        let tensor = |name: &str| format!("blk.{first}.{name}");
        let width =
            keys.need_size("kda.head_dim", limits::HEAD_WIDTH, "the width of a head with a recurrent state")?;
        let rates = tensor("ssm_a");
        let stored = self.tensors.shape(&rates).unwrap_or_default();
        // `head_count` is that of the latent layers, so the heads of the state come from the rates'
        // tensor.
        let heads = stored.iter().product();
        if !limits::HEADS.contains(&heads) {
            return Err(keys.wrong_shape(&rates, &stored, "a rate for each head"));
        }
        let taps = keys.size("ssm.conv_kernel", limits::TAPS)?.unwrap_or(DEFAULT_TAPS);
        // No key: Kimi-Linear stores two factors of the decay's projection, Ling-3.0 one matrix.
        let low_rank = tensor("ssm_f_b.weight");
        let rank = match self.tensors.shape(&low_rank) {
            Some(shape) => {
                let rank = shape.last().copied().filter(|rank| limits::RANK.contains(rank));
                Some(rank.ok_or_else(|| keys.wrong_shape(&low_rank, &shape, "at least one input"))?)
            }
            None => None,
        };
        let bound = keys.real("kda.gate_lower_bound", limits::DECAY_BOUND)?;
        let lower_bound = match keys.flag("kda.safe_gate")? {
            // An explicit false overrides a stated bound.
            Some(false) => None,
            Some(true) => Some(bound.ok_or_else(|| {
                keys.missing("kda.gate_lower_bound", "kda.safe_gate requires a lower bound of the log decay")
            })?),
            None => bound,
        };
        // The sign of `ssm_a` differs between the two architectures; loading accepts either.
        let rate = DecayRate::Plain;
        Ok(Some(Box::new(KdaShape { heads, width, taps, rank, lower_bound, rate, layers })))
    }
}
