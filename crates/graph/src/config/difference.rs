//! Comparison of two configs by their computation.

use super::ModelConfig;
use serde_json::Value;

/// Relative tolerance for floats that went through an f32 in a GGUF file.
const TOLERANCE: f64 = 1e-6;

/// The first field in which two configs compute something else, with both values. Ignored are
/// names, the forms in which W_UK and W_UV are stored, and values without effect.
pub(super) fn difference(one: &ModelConfig, other: &ModelConfig) -> Option<String> {
    let value = |config: &ModelConfig| serde_json::to_value(config.compared());
    // Compared as JSON, so that a new field of `ModelConfig` is compared without code here.
    match (value(one), value(other)) {
        (Ok(one), Ok(other)) => between("", &one, &other),
        (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
    }
}

impl ModelConfig {
    /// The same config without fields that do not change the computation.
    fn compared(&self) -> ModelConfig {
        let mut config = ModelConfig {
            architecture: String::new(),
            name: None,
            kv_form: super::KvForm::Combined,
            query_gate: self.query_gate.map(|_| super::QueryGate::Fused),
            ..self.clone()
        };
        if let Some(kda) = &mut config.kda {
            kda.rate = super::DecayRate::Log;
        }
        if let Some(moe) = &mut config.moe {
            // Both kinds of file have a floor that no published router reaches.
            moe.router.norm_floor = 0.0;
            // Without groups, their score and mask are never used.
            if moe.router.groups == 1 {
                moe.router.group_score = super::GroupScore::Max;
                moe.router.group_mask = super::GroupMask::Excluded;
            }
        }
        config
    }

    /// YaRN's mscale: the square root of its factor on attention scores.
    pub(super) fn score_growth(&self) -> f64 {
        let a = &self.attention;
        (a.softmax_scale * ((a.nope + a.rope) as f64).sqrt()).sqrt()
    }
}

/// Whether two numbers are equal up to [`TOLERANCE`].
pub(super) fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
}

fn between(path: &str, one: &Value, other: &Value) -> Option<String> {
    let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            // Optional fields are omitted when `None`, so a missing key compares as null.
            let null = Value::Null;
            let of = |object: &serde_json::Map<String, Value>, key: &str| {
                object.get(key).cloned().unwrap_or(null.clone())
            };
            keys.into_iter().find_map(|key| between(&at(key), &of(a, key), &of(b, key)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(i, (a, b))| between(&at(&i.to_string()), a, b))
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64()?, b.as_f64()?);
            (!close(a, b)).then(|| format!("{path} is {a}, but would be read back as {b}"))
        }
        _ if one == other => None,
        _ => Some(format!("{path} is {one}, but would be read back as {other}")),
    }
}
