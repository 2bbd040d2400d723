//! Layers of Kimi Delta Attention (Kimi-Linear, Ling-3.0) in config.json.

use super::error::ConfigError;
use super::hf_file::HfConfig;
use super::limits;
use super::source::MetadataValue;
use super::{DecayRate, KdaShape};
use std::ops::RangeInclusive;

/// Taps of a convolution if config.json does not state them, as in all published models.
const DEFAULT_TAPS: usize = 4;

impl HfConfig<'_> {
    /// Whether each decoder layer has a recurrent state instead of latent attention.
    ///
    /// # Errors
    /// Lists that contradict each other or the number of layers; linear attention in a family
    /// without it; no layer with latent attention.
    pub(super) fn recurrent_layers(&self, layers: usize) -> Result<Vec<bool>, ConfigError> {
        // In order of precision: lists of numbers, a word per layer, a group size.
        let kinds = match self.listed_layers(layers)? {
            Some(kinds) => kinds,
            None => match self.typed_layers(layers)? {
                Some(kinds) => kinds,
                None => self.grouped_layers(layers)?,
            },
        };
        if let Some(layer) = kinds.iter().position(|recurrent| *recurrent)
            && self.family.kda.is_none()
        {
            let expected = "\"full_attention\" in every layer: linear attention is not supported in models of this family";
            return Err(self.text.not_computed(
                "layer_types",
                format!("\"linear_attention\" for layer {layer}"),
                expected,
            ));
        }
        if kinds.iter().all(|recurrent| *recurrent) {
            let expected = "at least one layer with latent attention";
            return Err(self.text.not_computed("layer_types", "linear attention in every layer", expected));
        }
        Ok(kinds)
    }

    /// Published files of Kimi-Linear list the layers of each kind, counted from 1.
    fn listed_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
        let linear = self.text.within("linear_attn_config.");
        let Some(field) = linear.field("kda_layers") else { return Ok(None) };
        let mut kinds = vec![None; layers];
        let lists = [
            ("kda_layers", Some(field), true),
            ("full_attn_layers", linear.field("full_attn_layers"), false),
        ];
        // With both lists, every layer must be in one. With `kda_layers` alone, the others are
        // latent.
        let mut complete = true;
        for (key, field, recurrent) in lists {
            let Some(field) = field else {
                complete = false;
                continue;
            };
            let expected = || format!("a list of layer numbers from 1 to {layers}, each in one list only");
            let MetadataValue::List(numbers) = &field else {
                return Err(linear.wrong(key, &field, expected()));
            };
            for number in numbers {
                let layer = match number {
                    MetadataValue::Integer(number) => usize::try_from(*number).ok(),
                    _ => None,
                };
                // A layer in both lists, or twice in one, is an error.
                let free = layer
                    .and_then(|layer| kinds.get_mut(layer.checked_sub(1)?))
                    .filter(|kind| kind.is_none());
                match free {
                    Some(kind) => *kind = Some(recurrent),
                    None => return Err(linear.wrong(key, number, expected())),
                }
            }
        }
        // Transformers writes empty lists and the kinds in `layer_types`.
        if kinds.iter().all(Option::is_none) && self.text.mentions("layer_types") {
            return Ok(None);
        }
        if let Some(layer) = kinds.iter().position(Option::is_none).filter(|_| complete) {
            let found = format!("a list without layer {}", layer + 1);
            let expected = "each layer in it or in full_attn_layers";
            return Err(linear.wrong("kda_layers", found, expected));
        }
        Ok(Some(kinds.into_iter().map(|kind| kind == Some(true)).collect()))
    }

    /// `layer_types`: a word per layer, as Transformers writes them.
    fn typed_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(field) = self.text.field("layer_types") else { return Ok(None) };
        let hybrid = self.family.kda.is_some();
        let MetadataValue::List(types) = &field else {
            let expected = "a list of \"full_attention\" or \"linear_attention\"";
            return if hybrid { Err(self.text.wrong("layer_types", field, expected)) } else { Ok(None) };
        };
        let is = |of: &MetadataValue, word: &str| matches!(of, MetadataValue::Text(name) if name == word);
        if !hybrid {
            // Other words of other families are checked by `hf_refused`.
            let linear = types.iter().map(|of| is(of, "linear_attention"));
            return Ok(types.iter().any(|of| is(of, "linear_attention")).then(|| linear.collect()));
        }
        if let Some(layer) =
            types.iter().position(|of| !is(of, "full_attention") && !is(of, "linear_attention"))
        {
            let value = format!("{} for layer {layer}", types[layer]);
            let expected =
                "\"full_attention\" or \"linear_attention\": other kinds of layers are not supported";
            return Err(self.text.not_computed("layer_types", value, expected));
        }
        // A short list would silently make the remaining layers latent.
        if types.len() != layers {
            let value = format!("a list of {}", types.len());
            return Err(self.text.wrong("layer_types", value, format!("a list of {layers}")));
        }
        Ok(Some(types.iter().map(|of| is(of, "linear_attention")).collect()))
    }

    /// Published files of Ling-3.0 have `layer_group_size`: the last layer of each group has latent
    /// attention. For layers after the last whole group, the published code and Transformers
    /// disagree, so tensors decide.
    fn grouped_layers(&self, layers: usize) -> Result<Vec<bool>, ConfigError> {
        if self.family.kda.is_none() {
            return Ok(vec![false; layers]);
        }
        match self.text.size("layer_group_size", 1..=*limits::LAYERS.end())? {
            Some(group) => {
                let latent = |layer| {
                    let name = self.layer_tensor(layer, "self_attn.kv_a_proj_with_mqa.weight");
                    layer >= layers - layers % group && self.tensors.has(&name)
                };
                Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(group) && !latent(layer)).collect())
            }
            None => Err(self.text.missing(
                "layer_types",
                "it, linear_attn_config or layer_group_size determines which layers have linear attention \
                 (KDA)",
            )),
        }
    }

    /// Sizes of the layers with a recurrent state; `None` without such layers.
    pub(super) fn kda(
        &self,
        mut recurrent: Vec<bool>,
        mtp_layers: usize,
    ) -> Result<Option<Box<KdaShape>>, ConfigError> {
        let Some((first, defaults)) = recurrent.iter().position(|kind| *kind).zip(self.family.kda.as_ref())
        else {
            return Ok(None);
        };
        let linear = self.text.within("linear_attn_config.");
        // Kimi-Linear's published keys, those that Transformers writes, and Ling-3.0's, in this
        // order.
        let size = |key, [again, plain]: [&str; 2], range: RangeInclusive<usize>| match linear
            .size(key, range.clone())?
        {
            Some(size) => Ok(Some(size)),
            None => match self.text.size(again, range.clone())? {
                Some(size) => Ok(Some(size)),
                None => self.text.size(plain, range),
            },
        };
        let heads = size("num_heads", ["linear_num_heads", "num_attention_heads"], limits::HEADS)?;
        let width = size("head_dim", ["linear_head_dim", "head_dim"], limits::HEAD_WIDTH)?;
        let taps = size(
            "short_conv_kernel_size",
            ["linear_conv_kernel_dim", "short_conv_kernel_size"],
            limits::TAPS,
        )?;
        let missing = |key, what: &str| self.text.missing(key, format!("it is {what}"));
        let heads = heads.ok_or_else(|| missing("num_attention_heads", "the number of heads per layer"))?;
        let width = width.ok_or_else(|| missing("head_dim", "the width of a head with a recurrent state"))?;
        let taps = taps.unwrap_or(DEFAULT_TAPS);
        let bound = self.text.real("kda_lower_bound", limits::DECAY_BOUND)?;
        let lower_bound = match self.text.flag("kda_safe_gate")? {
            // Ling-3.0's class defaults to a bound; `kda_safe_gate: false` turns it off.
            Some(false) => None,
            Some(true) => Some(bound.or(defaults.lower_bound).ok_or_else(|| {
                self.text.missing("kda_lower_bound", "kda_safe_gate requires a lower bound of the log decay")
            })?),
            None => bound.or(defaults.lower_bound),
        };
        let low_rank = self.layer_tensor(first, "self_attn.f_a_proj.weight");
        let whole = self.layer_tensor(first, "self_attn.f_proj.weight");
        // Tensors decide. `no_kda_lora` counts only for a config.json without tensors
        // (`implied.rs`).
        let rank = match (self.tensors.shape(&low_rank), self.tensors.has(&whole)) {
            (Some(shape), _) => {
                let rank = shape.first().copied().filter(|rank| limits::RANK.contains(rank));
                Some(rank.ok_or_else(|| self.text.wrong_shape(&low_rank, &shape, "at least one output"))?)
            }
            (None, true) => None,
            (None, false) => {
                let hint = format!("the decay of a state needs it, or {whole}");
                return Err(self.text.missing_tensor(&low_rank, hint));
            }
        };
        // MTP layers have latent attention (Ling-3.0).
        recurrent.resize(recurrent.len() + mtp_layers, false);
        let rate = DecayRate::Log;
        Ok(Some(Box::new(KdaShape { heads, width, taps, rank, lower_bound, rate, layers: recurrent })))
    }
}
