//! Rotary embedding and attention temperature of config.json, in the old spelling (`rope_scaling`, `rope_theta`) and the new
//! (`rope_parameters`).

use super::Temperature;
use super::error::ConfigError;
use super::families::ModelFamily;
use super::keys::ROPE_BASE;
use super::limits;
use super::reader::Reader;
use super::rope::{RopePairs, RopeScaling, RopeSpec, longrope_magnitude, yarn_mscale};
use super::source::MetadataValue;

/// A rotary embedding, and what it does to attention scores.
pub(super) struct HfRope {
    pub(super) spec: RopeSpec,
    /// Factor on 1/√(nope + rope): mscale².
    pub(super) score_scale: f64,
}

/// The keys of the scaling. As in Transformers, a `rope_scaling` that says anything takes the place of `rope_parameters`, of which then
/// nothing is read, not even `rope_theta`.
fn parameters<'a>(text: &Reader<'a>) -> Result<Option<Reader<'a>>, ConfigError> {
    for key in ["rope_scaling", "rope_parameters"] {
        match text.field(key) {
            None => {}
            Some(MetadataValue::Object(names)) if names.is_empty() => {}
            Some(MetadataValue::Object(names)) => {
                let parameters = text.within(&format!("{key}."));
                return match names
                    .iter()
                    .find(|name| matches!(parameters.field(name), Some(MetadataValue::Object(_))))
                {
                    None => Ok(Some(parameters)),
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

/// θ of `rope_parameters` if `rope_scaling` takes their place.
fn replaced_base(text: &Reader<'_>) -> Result<Option<f64>, ConfigError> {
    match text.field("rope_scaling") {
        Some(MetadataValue::Object(names)) if !names.is_empty() => {
            text.within("rope_parameters.").get(&ROPE_BASE)
        }
        _ => Ok(None),
    }
}

/// θ of Transformers' classes if config.json states none.
const USUAL_BASE: f64 = 10_000.0;

/// θ by the keys that are read.
fn base(
    text: &Reader<'_>,
    parameters: Option<&Reader<'_>>,
    family: &ModelFamily,
) -> Result<f64, ConfigError> {
    let inner = parameters.map(|p| p.get(&ROPE_BASE)).transpose()?.flatten();
    let usual = family.rope_base.or(replaced_base(text)?.map(|_| USUAL_BASE));
    inner.or(text.get(&ROPE_BASE)?).or(usual).ok_or_else(|| text.missing_key(&ROPE_BASE))
}

/// A warning if θ of `rope_parameters` is not the one that is used.
pub(super) fn replaced(text: &Reader<'_>, family: &ModelFamily) -> Result<Option<String>, ConfigError> {
    let Some(lost) = replaced_base(text)? else { return Ok(None) };
    let base = base(text, parameters(text)?.as_ref(), family)?;
    let warning = format!(
        "{file}: rope_scaling takes the place of rope_parameters, as in Transformers: rope_theta is {base:?}, and not {lost:?} as in \
         rope_parameters; state rope_theta in rope_scaling to choose it",
        file = text.file()
    );
    Ok((base != lost).then_some(warning))
}

/// Whether the shared key is rotated. False if the model has no shared key or no rotation
/// (`mla_use_nope`, NoPE).
fn rotates(text: &Reader<'_>, family: &ModelFamily, dims: usize) -> Result<bool, ConfigError> {
    match text.flag("mla_use_nope")? {
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
    if !rotates(text, family, dims)? {
        return Ok(HfRope { spec: RopeSpec::none(), score_scale: 1.0 });
    }
    if !dims.is_multiple_of(2) {
        let expected = "an even number: rotated numbers come in pairs";
        return Err(text.wrong("qk_rope_head_dim", dims, expected));
    }
    let parameters = parameters(text)?;
    let base = base(text, parameters.as_ref(), family)?;
    let pairs = match text.flag("rope_interleave")? {
        Some(true) => RopePairs::Interleaved,
        Some(false) => RopePairs::NeoX,
        None => family.pairs,
    };
    let (scaling, score_scale) = match &parameters {
        None => (RopeScaling::None, 1.0),
        Some(parameters) => scaling(parameters, dims, context)?,
    };
    Ok(HfRope { spec: RopeSpec { base, pairs, dims, scaling }, score_scale })
}

/// The part of a head that `partial_rotary_factor` says is rotated must be the rope part, of the head or of itself.
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
    let kind = match p.text("rope_type")? {
        Some(kind) => Some(kind),
        None => p.text("type")?,
    };
    match kind.as_deref() {
        None if p.field("factor").is_none() => Ok((RopeScaling::None, 1.0)),
        None => Err(p.missing("rope_type", "a factor without a kind of scaling means nothing")),
        Some("default" | "none") => Ok((RopeScaling::None, 1.0)),
        Some("linear") => {
            let factor = p.need_real("factor", limits::ROPE_FACTOR, "how much longer the context became")?;
            Ok((RopeScaling::Linear { factor }, 1.0))
        }
        Some("yarn" | "deepseek_yarn") => yarn(p, context),
        Some("longrope") => Ok((longrope(p, dims, context)?, 1.0)),
        Some(other) => {
            let key = if p.field("rope_type").is_some() { "rope_type" } else { "type" };
            Err(p.not_computed(key, format!("{other:?}"), "default, linear, yarn or longrope"))
        }
    }
}

/// YaRN as DeepSeek's code has it: cos and sin × `get_mscale(f, mscale) / get_mscale(f, mscale_all_dim)`, attention scores ×
/// `get_mscale(f, mscale_all_dim)²`. Mistral Large 3 (`apply_scale` false) scales frequencies only.
fn yarn(p: &Reader<'_>, context: usize) -> Result<(RopeScaling, f64), ConfigError> {
    let original = p.need_size(
        "original_max_position_embeddings",
        limits::CONTEXT,
        "the context of the first training, which YaRN needs",
    )?;
    let factor = match p.real("factor", limits::ROPE_FACTOR)? {
        Some(factor) => factor,
        None => (context as f64 / original as f64).max(1.0),
    };
    // Mistral calls them beta and alpha
    let beta = |key, other, default| -> Result<f64, ConfigError> {
        Ok(p.real(key, limits::BETA)?.or(p.real(other, limits::BETA)?).unwrap_or(default))
    };
    let (beta_fast, beta_slow) = (beta("beta_fast", "beta", 32.0)?, beta("beta_slow", "alpha", 1.0)?);
    if beta_fast < beta_slow {
        return Err(p.wrong("beta_fast", beta_fast, format!("at least beta_slow, which is {beta_slow}")));
    }
    if p.flag("truncate")? == Some(false) {
        return Err(p.not_computed("truncate", false, "true: ramps between whole pairs only are supported"));
    }
    let mscale = p.real("mscale", limits::MSCALE)?.unwrap_or(1.0);
    let all = p.real("mscale_all_dim", limits::MSCALE)?.unwrap_or(0.0);
    let applied = match p.flag("apply_scale")? {
        Some(applied) => applied,
        None => p.flag("apply_yarn_scaling")?.unwrap_or(true),
    };
    let (mut magnitude, mut score_scale) = (1.0, 1.0);
    if applied {
        magnitude = yarn_mscale(factor, mscale) / yarn_mscale(factor, all);
        score_scale = yarn_mscale(factor, all).powi(2);
    }
    if let Some(given) = p.real("attention_factor", limits::MAGNITUDE)? {
        magnitude = given;
    }
    let ext_factor = 1.0;
    Ok((RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, magnitude }, score_scale))
}

fn longrope(p: &Reader<'_>, dims: usize, context: usize) -> Result<RopeScaling, ConfigError> {
    let original = p.size("original_max_position_embeddings", limits::CONTEXT)?.unwrap_or(context);
    let list = |key: &str| -> Result<Vec<f64>, ConfigError> {
        p.reals(key, limits::LONG_FACTOR, dims / 2)?
            .ok_or_else(|| p.missing(key, format!("it lists {} factors, one a rotated pair", dims / 2)))
    };
    let (short, long) = (list("short_factor")?, list("long_factor")?);
    let factor = p.real("factor", limits::ROPE_FACTOR)?.unwrap_or(context as f64 / original as f64);
    let given = p.real("attention_factor", limits::MAGNITUDE)?;
    let magnitude = given.unwrap_or_else(|| longrope_magnitude(factor, original));
    Ok(RopeScaling::LongRope { original, short, long, magnitude })
}

/// Mistral's `llama_4_scaling`: a key of its own next to the rope's keys, or in newer files one of
/// them, `llama_4_scaling_beta`.
pub(super) fn temperature(text: &Reader<'_>) -> Result<Option<Temperature>, ConfigError> {
    let (reader, key) = match (text.field("llama_4_scaling"), parameters(text)?) {
        (Some(MetadataValue::Object(_)), _) => (text.within("llama_4_scaling."), "beta"),
        (Some(field), _) => return Err(text.wrong("llama_4_scaling", field, "an object or null")),
        (None, Some(parameters)) => (parameters, "llama_4_scaling_beta"),
        (None, None) => return Ok(None),
    };
    let Some(scale) = reader.real(key, limits::TEMPERATURE)?.filter(|scale| *scale != 0.0) else {
        return Ok(None);
    };
    let hint = "over how many positions the attention temperature is constant";
    let length = reader.need_size("original_max_position_embeddings", limits::CONTEXT, hint)?;
    Ok(Some(Temperature { scale, length }))
}
