//! Rotary embedding and attention temperature of config.json, in the old form (`rope_scaling`,
//! `rope_theta`) and the new one (`rope_parameters`).

use super::Temperature;
use super::error::ConfigError;
use super::families::ModelFamily;
use super::keys::ROPE_BASE;
use super::limits;
use super::reader::Reader;
use super::rope::{RopePairs, RopeScaling, RopeSpec, longrope_magnitude, yarn_mscale};
use super::source::MetadataValue;

/// A rotary embedding, and its factor on attention scores.
pub(super) struct HfRope {
    pub(super) spec: RopeSpec,
    /// Factor on 1/√(nope + rope): mscale².
    pub(super) score_scale: f64,
}

/// The keys of the scaling. As in Transformers, a non-empty `rope_scaling` replaces
/// `rope_parameters` completely, including `rope_theta`.
fn parameters<'a>(text: &Reader<'a>) -> Result<Option<Reader<'a>>, ConfigError> {
    for key in ["rope_scaling", "rope_parameters"] {
        match text.field(key) {
            None => {}
            // Transformers takes an empty object for a missing one.
            Some(MetadataValue::Object(names)) if names.is_empty() => {}
            Some(MetadataValue::Object(names)) => {
                let parameters = text.within(&format!("{key}."));
                return match names
                    .iter()
                    .find(|name| matches!(parameters.field(name), Some(MetadataValue::Object(_))))
                {
                    None => Ok(Some(parameters)),
                    // Transformers 5 allows parameters per layer type. Taking any of them would be
                    // wrong for other layers.
                    Some(nested) => {
                        let expected =
                            "a number, a word or a list: rope parameters per layer type are not supported";
                        Err(parameters.not_computed(nested, "an object", expected))
                    }
                };
            }
            Some(field) => return Err(text.wrong(key, field, "an object or null")),
        }
    }
    Ok(None)
}

/// θ of `rope_parameters` if `rope_scaling` replaces them.
fn replaced_base(text: &Reader<'_>) -> Result<Option<f64>, ConfigError> {
    match text.field("rope_scaling") {
        Some(MetadataValue::Object(names)) if !names.is_empty() => {
            text.within("rope_parameters.").get(&ROPE_BASE)
        }
        _ => Ok(None),
    }
}

/// Default θ of Transformers' classes.
const USUAL_BASE: f64 = 10_000.0;

/// θ by the keys that count: of the scaling, of the top level, or the family's default.
fn base(
    text: &Reader<'_>,
    parameters: Option<&Reader<'_>>,
    family: &ModelFamily,
) -> Result<f64, ConfigError> {
    let inner = parameters.map(|p| p.get(&ROPE_BASE)).transpose()?.flatten();
    // Families without a default (GLM, Youtu) require the key, unless `rope_parameters` stated it
    // and was replaced: Transformers then uses its class's default.
    let usual = family.rope_base.or(replaced_base(text)?.map(|_| USUAL_BASE));
    inner.or(text.get(&ROPE_BASE)?).or(usual).ok_or_else(|| text.missing_key(&ROPE_BASE))
}

/// A warning if θ of `rope_parameters` is replaced by another value.
pub(super) fn replaced(text: &Reader<'_>, family: &ModelFamily) -> Result<Option<String>, ConfigError> {
    let Some(lost) = replaced_base(text)? else { return Ok(None) };
    let base = base(text, parameters(text)?.as_ref(), family)?;
    let warning = format!(
        "{file}: rope_scaling replaces rope_parameters, as in Transformers: rope_theta is {base:?}, not \
         {lost:?} as in rope_parameters; set rope_theta in rope_scaling to choose it",
        file = text.file()
    );
    Ok((base != lost).then_some(warning))
}

/// Whether the shared key is rotated. False without a shared key, or in models without rotation
/// (`mla_use_nope`, NoPE: Kimi-Linear).
fn rotates(text: &Reader<'_>, family: &ModelFamily, dims: usize) -> Result<bool, ConfigError> {
    match text.flag("mla_use_nope")? {
        // Kimi-Linear's published code ignores the key and never rotates, so `false` would be
        // misleading.
        Some(false) if !family.rotates => {
            Err(text.wrong("mla_use_nope", false, "true: the published code of this family never rotates"))
        }
        nope => Ok(family.rotates && nope != Some(true) && dims > 0),
    }
}

pub(super) fn read(
    text: &Reader<'_>,
    family: &ModelFamily,
    dims: usize,
    context: usize,
) -> Result<HfRope, ConfigError> {
    // Before the parity check: NoPE models may have any width.
    if !rotates(text, family, dims)? {
        return Ok(HfRope { spec: RopeSpec::none(), score_scale: 1.0 });
    }
    if !dims.is_multiple_of(2) {
        let expected = "an even number: rotated elements come in pairs";
        return Err(text.wrong("qk_rope_head_dim", dims, expected));
    }
    let parameters = parameters(text)?;
    let base = base(text, parameters.as_ref(), family)?;
    let pairs = match text.flag("rope_interleave")? {
        Some(true) => RopePairs::Interleaved,
        Some(false) => RopePairs::NeoX,
        None => family.pairs,
    };
    // No rope parameters, no scaling.
    let (scaling, score_scale) = match &parameters {
        None => (RopeScaling::None, 1.0),
        Some(parameters) => scaling(parameters, dims, context)?,
    };
    Ok(HfRope { spec: RopeSpec { base, pairs, dims, scaling }, score_scale })
}

/// Checks `partial_rotary_factor`. Mistral Small 4 states the rotated part of the whole head (0.5),
/// other files that of the rope part (1.0).
pub(super) fn check_part(text: &Reader<'_>, dims: usize, head: usize) -> Result<(), ConfigError> {
    let key = "partial_rotary_factor";
    for reader in parameters(text)?.iter().chain([text]) {
        if let Some(part) = reader.real(key, 0.0..=1.0)?
            && part != 1.0
            && (part * head as f64 - dims as f64).abs() >= 0.5
        {
            let expected =
                format!("{}: {dims} of {head} elements of a head are rotated", dims as f64 / head as f64);
            return Err(reader.wrong(key, part, expected));
        }
    }
    Ok(())
}

fn scaling(p: &Reader<'_>, dims: usize, context: usize) -> Result<(RopeScaling, f64), ConfigError> {
    // `type` is the older spelling of the key.
    let kind = match p.text("rope_type")? {
        Some(kind) => Some(kind),
        None => p.text("type")?,
    };
    match kind.as_deref() {
        // Parameters with θ alone.
        None if p.field("factor").is_none() => Ok((RopeScaling::None, 1.0)),
        None => Err(p.missing("rope_type", "a factor requires a scaling type")),
        // New-form `rope_parameters` always have a type; "default" carries only θ.
        Some("default" | "none") => Ok((RopeScaling::None, 1.0)),
        Some("linear") => {
            let factor = p.need_real("factor", limits::ROPE_FACTOR, "the factor of the context extension")?;
            Ok((RopeScaling::Linear { factor }, 1.0))
        }
        // "deepseek_yarn" is the type's name in vLLM.
        Some("yarn" | "deepseek_yarn") => yarn(p, context),
        Some("longrope") => Ok((longrope(p, dims, context)?, 1.0)),
        Some(other) => {
            let key = if p.field("rope_type").is_some() { "rope_type" } else { "type" };
            Err(p.not_computed(key, format!("{other:?}"), "default, linear, yarn or longrope"))
        }
    }
}

/// YaRN as in DeepSeek's code: cos and sin are multiplied by `get_mscale(f, mscale) / get_mscale(f,
/// mscale_all_dim)`, attention scores by `get_mscale(f, mscale_all_dim)²`. Mistral Large 3
/// (`apply_scale` false) scales frequencies only.
fn yarn(p: &Reader<'_>, context: usize) -> Result<(RopeScaling, f64), ConfigError> {
    let original = p.need_size(
        "original_max_position_embeddings",
        limits::CONTEXT,
        "the original context length, which YaRN needs",
    )?;
    let factor = match p.real("factor", limits::ROPE_FACTOR)? {
        Some(factor) => factor,
        // The extension from the original context to the model's.
        None => (context as f64 / original as f64).max(1.0),
    };
    // Mistral Large 3 calls them `beta` and `alpha`.
    let beta = |key, other, default| -> Result<f64, ConfigError> {
        Ok(p.real(key, limits::BETA)?.or(p.real(other, limits::BETA)?).unwrap_or(default))
    };
    let (beta_fast, beta_slow) = (beta("beta_fast", "beta", 32.0)?, beta("beta_slow", "alpha", 1.0)?);
    if beta_fast < beta_slow {
        return Err(p.wrong("beta_fast", beta_fast, format!("at least beta_slow, which is {beta_slow}")));
    }
    // `yarn_range` rounds to whole pairs, as DeepSeek's code does.
    if p.flag("truncate")? == Some(false) {
        return Err(p.not_computed("truncate", false, "true: only ramps between whole pairs are supported"));
    }
    // Defaults of DeepSeek's `DeepseekV2YarnRotaryEmbedding`: without `mscale_all_dim` only cos and
    // sin grow.
    let mscale = p.real("mscale", limits::MSCALE)?.unwrap_or(1.0);
    let all = p.real("mscale_all_dim", limits::MSCALE)?.unwrap_or(0.0);
    let applied = match p.flag("apply_scale")? {
        Some(applied) => applied,
        // The same key in params.json of Mistral Small 4.
        None => p.flag("apply_yarn_scaling")?.unwrap_or(true),
    };
    let (mut magnitude, mut score_scale) = (1.0, 1.0);
    if applied {
        magnitude = yarn_mscale(factor, mscale) / yarn_mscale(factor, all);
        score_scale = yarn_mscale(factor, all).powi(2);
    }
    // Transformers: `attention_factor` overrides the computed factor on cos and sin.
    if let Some(given) = p.real("attention_factor", limits::MAGNITUDE)? {
        magnitude = given;
    }
    // config.json has no key for it. 1 is YaRN as published.
    let ext_factor = 1.0;
    Ok((RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, magnitude }, score_scale))
}

fn longrope(p: &Reader<'_>, dims: usize, context: usize) -> Result<RopeScaling, ConfigError> {
    let original = p.size("original_max_position_embeddings", limits::CONTEXT)?.unwrap_or(context);
    let list = |key: &str| -> Result<Vec<f64>, ConfigError> {
        p.reals(key, limits::LONG_FACTOR, dims / 2)?
            .ok_or_else(|| p.missing(key, format!("it lists {} factors, one per rotated pair", dims / 2)))
    };
    let (short, long) = (list("short_factor")?, list("long_factor")?);
    // MiniCPM3 has no `factor`; Transformers derives it in the same way.
    let factor = p.real("factor", limits::ROPE_FACTOR)?.unwrap_or(context as f64 / original as f64);
    let given = p.real("attention_factor", limits::MAGNITUDE)?;
    let magnitude = given.unwrap_or_else(|| longrope_magnitude(factor, original));
    Ok(RopeScaling::LongRope { original, short, long, magnitude })
}

/// Mistral's `llama_4_scaling`: a separate key (Mistral Large 3), or `llama_4_scaling_beta` among
/// the rope's keys (Mistral Small 4).
pub(super) fn temperature(text: &Reader<'_>) -> Result<Option<Temperature>, ConfigError> {
    let (reader, key) = match (text.field("llama_4_scaling"), parameters(text)?) {
        (Some(MetadataValue::Object(_)), _) => (text.within("llama_4_scaling."), "beta"),
        (Some(field), _) => return Err(text.wrong("llama_4_scaling", field, "an object or null")),
        (None, Some(parameters)) => (parameters, "llama_4_scaling_beta"),
        (None, None) => return Ok(None),
    };
    // 0 is the neutral value of β.
    let Some(scale) = reader.real(key, limits::TEMPERATURE)?.filter(|scale| *scale != 0.0) else {
        return Ok(None);
    };
    let hint = "the number of positions with the same attention temperature";
    let length = reader.need_size("original_max_position_embeddings", limits::CONTEXT, hint)?;
    Ok(Some(Temperature { scale, length }))
}
