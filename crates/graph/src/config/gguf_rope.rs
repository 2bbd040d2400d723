//! Rotary embedding of a GGUF file.
//!
//! For YaRN, llama.cpp scales in three places that partly cancel. The table shows the result, with
//! f the factor and m the key
//!
//! | file | cos and sin × | scores × |
//! |---|---|---|
//! | deepseek2, m present (not 0) | attn_factor | (attn_factor · (1 + 0.1 m ln f))² |
//! | deepseek32, glm-dsa, mistral4, m present | attn_factor · (1 + 0.1 ln f) / (1 + 0.1 m ln f) | (attn_factor · (1 + 0.1 ln f))² |
//! | m missing | attn_factor · (1 + 0.1 ln f) | (attn_factor · (1 + 0.1 ln f))² |
//! | minicpm3, plm | attn_factor · (1 + 0.1 ln f) | 1 |
//! | deepseek2 with attention temperature (Mistral Large 3) | attn_factor | 1 |
//!
//! The first two rows agree for m = 1, which all published models of the second row have. The third
//! row is what llama.cpp computes for old files, which were made for it (ADR 11). The last row
//! follows the model's configuration (`apply_scale: false`, as in vLLM and SGLang). llama.cpp
//! scales the scores there, because the converter writes a multiplier that the model does not have
//! (ADR 12).
use super::decimal::written;
use super::error::ConfigError;
use super::gguf_file::{GgufConfig, YarnKeys};
use super::keys::ROPE_BASE;
use super::limits;
use super::rope::{RopePairs, RopeScaling, RopeSpec, yarn_mscale};

/// A rotary embedding, and its factor on attention scores.
pub(super) struct GgufRope {
    pub(super) spec: RopeSpec,
    pub(super) score_scale: f64,
}

pub(super) fn read(
    gguf: &GgufConfig<'_>,
    dims: usize,
    context: usize,
    temperature: bool,
) -> Result<GgufRope, ConfigError> {
    let keys = &gguf.keys;
    if dims == 0 {
        return Ok(GgufRope { spec: RopeSpec::none(), score_scale: 1.0 });
    }
    let base = keys.get(&ROPE_BASE)?.unwrap_or(10_000.0);
    // Without the key the context was not extended.
    let original = keys.size("rope.scaling.original_context_length", limits::CONTEXT)?.unwrap_or(context);
    let magnitude = keys.real("rope.scaling.attn_factor", limits::MAGNITUDE)?.unwrap_or(1.0);
    let kind = keys.text("rope.scaling.type")?;
    let (scaling, score_scale) = match (long_factors(gguf, dims)?, kind.as_deref()) {
        // The tensors imply LongRoPE: MiniCPM3's files need not state a type.
        (Some((short, long)), None | Some("longrope" | "none" | "linear")) => {
            (RopeScaling::LongRope { original, short, long, magnitude }, 1.0)
        }
        (Some(_), Some(other)) => {
            let expected = "longrope: the file has tensors rope_factors_long and rope_factors_short";
            return Err(keys.wrong("rope.scaling.type", format!("{other:?}"), expected));
        }
        (None, Some("longrope")) => {
            return Err(
                keys.missing_tensor("rope_factors_long.weight", "rope.scaling.type longrope needs it")
            );
        }
        (None, Some("yarn")) => yarn(gguf, original, magnitude, temperature)?,
        // A factor without a type means linear, as in llama.cpp.
        (None, None | Some("linear" | "none")) => {
            // The factor would be ignored silently, and llama.cpp would apply it.
            if magnitude != 1.0 {
                let expected = "1: only yarn and longrope have a factor on cos and sin";
                return Err(keys.wrong("rope.scaling.attn_factor", magnitude, expected));
            }
            let factor = if kind.as_deref() == Some("none") { None } else { factor(gguf)? };
            (factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor }), 1.0)
        }
        (None, Some(other)) => {
            return Err(keys.not_computed(
                "rope.scaling.type",
                format!("{other:?}"),
                "none, linear, yarn or longrope",
            ));
        }
    };
    // The architecture decides how elements pair up; the caller sets it.
    Ok(GgufRope { spec: RopeSpec { base, pairs: RopePairs::Interleaved, dims, scaling }, score_scale })
}

/// The factor of a scaling. `rope.scale_linear` is the old key. 0 and 1 mean no scaling.
fn factor(gguf: &GgufConfig<'_>) -> Result<Option<f64>, ConfigError> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        let given = gguf.keys.real(key, 0.0..=*limits::ROPE_FACTOR.end())?;
        if let Some(given) = given.filter(|given| *given != 0.0) {
            if given < *limits::ROPE_FACTOR.start() {
                return Err(gguf.keys.wrong(key, given, "at least 1 (or 0: no scaling)"));
            }
            return Ok(Some(given).filter(|given| *given > 1.0));
        }
    }
    Ok(None)
}

fn yarn(
    gguf: &GgufConfig<'_>,
    original: usize,
    attn_factor: f64,
    temperature: bool,
) -> Result<(RopeScaling, f64), ConfigError> {
    let keys = &gguf.keys;
    let Some(factor) = factor(gguf)? else {
        return Err(keys.missing("rope.scaling.factor", "YaRN needs the factor of the context extension"));
    };
    // llama.cpp takes β from its command line only. Here the file's keys count: Kimi-K2 was trained
    // with β_fast 1.
    let beta_fast = keys.real("rope.scaling.yarn_beta_fast", limits::BETA)?.unwrap_or(32.0);
    let beta_slow = keys.real("rope.scaling.yarn_beta_slow", limits::BETA)?.unwrap_or(1.0);
    // The ramp would run backwards.
    if beta_fast < beta_slow {
        let expected = format!("at least {}, which is {beta_slow}", keys.name("rope.scaling.yarn_beta_slow"));
        return Err(keys.wrong("rope.scaling.yarn_beta_fast", beta_fast, expected));
    }
    let ext_factor = keys.real("rope.scaling.yarn_ext_factor", limits::EXT_FACTOR)?.unwrap_or(1.0);
    // The converter writes 0.1 · mscale_all_dim.
    let log = keys.real("rope.scaling.yarn_log_multiplier", limits::MSCALE)?.unwrap_or(0.0) / 0.1;
    let scaled = |mscale: f64, all: f64| {
        let magnitude = attn_factor * yarn_mscale(factor, mscale) / yarn_mscale(factor, all);
        (magnitude, (magnitude * yarn_mscale(factor, all)).powi(2))
    };
    let (magnitude, score_scale) = match gguf.architecture.yarn {
        // The branches are the rows of the table above.
        YarnKeys::Deepseek2 if temperature => (attn_factor, 1.0),
        YarnKeys::Deepseek2 if log != 0.0 => scaled(log, log),
        YarnKeys::Deepseek2 | YarnKeys::Mla => scaled(1.0, log),
        YarnKeys::Frequencies => (attn_factor * yarn_mscale(factor, 1.0), 1.0),
    };
    // As in llama.cpp, cos and sin do not grow if no pair keeps its frequency.
    let magnitude = if ext_factor == 0.0 { attn_factor } else { magnitude };
    Ok((RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, magnitude }, score_scale))
}

type LongRopeFactors = (Vec<f64>, Vec<f64>);

/// LongRoPE's factors (MiniCPM3), which GGUF files store as two small tensors.
fn long_factors(gguf: &GgufConfig<'_>, dims: usize) -> Result<Option<LongRopeFactors>, ConfigError> {
    let names = ["rope_factors_short.weight", "rope_factors_long.weight"];
    if !names.iter().any(|name| gguf.tensors.has(name)) {
        return Ok(None);
    }
    let mut lists = Vec::with_capacity(2);
    for name in names {
        gguf.check(name, &[dims / 2], "[rope.dimension_count / 2]")?;
        let Some(factors) = gguf.tensors.f32s(name) else {
            let what = format!("type of tensor {name}");
            return Err(gguf.keys.wrong_place(what, "not F32", "F32"));
        };
        if let Some(bad) = factors.iter().find(|factor| !limits::LONG_FACTOR.contains(&f64::from(**factor))) {
            let expected =
                format!("from {:?} to {:?}", limits::LONG_FACTOR.start(), limits::LONG_FACTOR.end());
            return Err(gguf.keys.wrong_place(format!("a factor in tensor {name}"), bad, expected));
        }
        // The decimals of config.json, so that a model has the same config from either kind of
        // file.
        lists.push(factors.into_iter().map(|factor| written(f64::from(factor))).collect());
    }
    let long = lists.pop().unwrap_or_default();
    Ok(Some((lists.pop().unwrap_or_default(), long)))
}
