//! The sampling parameters that a model's files recommend.

use super::{SamplerKind, SamplingField, SamplingNumber, SamplingParams};
use crate::error::EngineError;
use latent_formats::gguf::Metadata;
use latent_formats::{Checkpoint, CheckpointSource};
use serde_json::{Map, Value};

/// The parameters that models can recommend: the name of the [`SamplingField`], the key after
/// `general.sampling.` that llama.cpp's converter writes, and the key of generation_config.json.
const KEYS: [(&str, Option<&str>, Option<&str>); 12] = [
    ("temperature", Some("temp"), Some("temperature")),
    ("top_k", Some("top_k"), Some("top_k")),
    ("top_p", Some("top_p"), Some("top_p")),
    ("min_p", Some("min_p"), Some("min_p")),
    ("typical_p", None, Some("typical_p")),
    ("repeat_penalty", Some("penalty_repeat"), Some("repetition_penalty")),
    ("repeat_last_n", Some("penalty_last_n"), None),
    ("xtc_probability", Some("xtc_probability"), None),
    ("xtc_threshold", Some("xtc_threshold"), None),
    ("mirostat", Some("mirostat"), None),
    ("mirostat_tau", Some("mirostat_tau"), None),
    ("mirostat_eta", Some("mirostat_eta"), None),
];

/// A model's recommended parameters: `general.sampling.*` of a GGUF file, generation_config.json of
/// a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecommendedParams {
    /// Names of [fields](SamplingField), and their values.
    pub numbers: Vec<(&'static str, f64)>,
    /// The samplers that run, in this order.
    pub samplers: Option<Vec<SamplerKind>>,
}

impl RecommendedParams {
    /// The recommendations in the model's files.
    ///
    /// # Errors
    /// If a value has a wrong type or is out of range. The message names the file and the key.
    pub fn of(checkpoint: &Checkpoint) -> Result<RecommendedParams, EngineError> {
        let (found, place) = match checkpoint.source() {
            CheckpointSource::Gguf(source) => {
                (RecommendedParams::of_gguf(&source.metadata), "general.sampling.*")
            }
            CheckpointSource::HuggingFace(source) => {
                let config = source.generation_config.as_ref().and_then(Value::as_object);
                (
                    config.map_or(Ok(RecommendedParams::default()), RecommendedParams::of_config),
                    "generation_config.json",
                )
            }
        };
        // The vocabulary is not known here, and no recommended parameter depends on it.
        let checked = found.and_then(|found| found.params().validate(usize::MAX).map(|()| found));
        checked
            .map_err(|error| EngineError::Options(format!("{}: {place}: {error}", checkpoint.display_name())))
    }

    /// The parameters, with defaults for those that the model does not recommend.
    pub fn params(&self) -> SamplingParams {
        let mut params = SamplingParams { samplers: self.samplers.clone(), ..SamplingParams::default() };
        self.apply(&mut params);
        params
    }

    /// Sets the numbers that the model recommends.
    pub fn apply(&self, params: &mut SamplingParams) {
        for (name, value) in &self.numbers {
            if let Some(field) = SamplingField::named(name) {
                field.set(params, *value);
            }
        }
    }

    /// Reads the keys that llama.cpp's converter writes.
    fn of_gguf(metadata: &Metadata) -> Result<RecommendedParams, EngineError> {
        let gguf = |(name, key, _): (&'static str, Option<&'static str>, _)| Some((name, key?));
        let numbers = read(KEYS.into_iter().filter_map(gguf), |key| {
            Ok(metadata.f64(&format!("general.sampling.{key}"))?)
        })?;
        let sequence = metadata.str("general.sampling.sequence")?.filter(|names| !names.is_empty());
        // Names are separated as in llama.cpp's `--samplers`.
        let order = |names: &str| SamplerKind::order_of_names(names.split(';'));
        Ok(RecommendedParams { numbers, samplers: sequence.map(order).transpose()? })
    }

    /// Reads generation_config.json.
    fn of_config(config: &Map<String, Value>) -> Result<RecommendedParams, EngineError> {
        match config.get("do_sample") {
            // Greedy sampling. Transformers ignores the other parameters then.
            Some(Value::Bool(false)) => {
                return Ok(RecommendedParams { numbers: vec![("temperature", 0.0)], samplers: None });
            }
            None | Some(Value::Null | Value::Bool(true)) => {}
            Some(other) => return Err(wrong(format!("do_sample is {other}, expected true or false"))),
        }
        let of_config = |(name, _, key): (&'static str, _, Option<&'static str>)| Some((name, key?));
        let numbers = read(KEYS.into_iter().filter_map(of_config), |key| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or_else(|| wrong(format!("{key} is {value}, expected a number")))
            }
        })?;
        Ok(RecommendedParams { numbers, samplers: None })
    }
}

/// The values of the existing keys.
fn read(
    keys: impl Iterator<Item = (&'static str, &'static str)>,
    number: impl Fn(&str) -> Result<Option<f64>, EngineError>,
) -> Result<Vec<(&'static str, f64)>, EngineError> {
    let mut numbers = Vec::new();
    for (name, key) in keys {
        if let Some(value) = number(key)? {
            numbers.push((name, checked(name, key, value)?));
        }
    }
    Ok(numbers)
}

fn wrong(problem: String) -> EngineError {
    EngineError::Options(problem)
}

/// Checks that a count is a whole number in its range.
fn checked(name: &str, key: &str, value: f64) -> Result<f64, EngineError> {
    let Some(SamplingNumber::Count { all, .. }) = SamplingField::named(name).map(|field| field.number) else {
        return Ok(value);
    };
    // −1 means "all" in llama.cpp's files.
    let least = if all.is_some() { -1.0 } else { 0.0 };
    match value {
        value if value.fract() == 0.0 && (least..=f64::from(u32::MAX)).contains(&value) => Ok(value),
        other => Err(wrong(format!("{key} is {other}, expected an integer from {least} to {}", u32::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(config: Value) -> Result<RecommendedParams, EngineError> {
        let found = RecommendedParams::of_config(config.as_object().unwrap())?;
        found.params().validate(usize::MAX).map(|()| found)
    }

    #[test]
    fn a_generation_config_is_read_as_transformers_reads_it() {
        let found = of(json!({
            "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null,
            "repetition_penalty": 1.05, "eos_token_id": [1, 2], "typical_p": 1
        }));
        let expected = [
            ("temperature", 0.6),
            ("top_k", 20.0),
            ("top_p", 0.95),
            ("typical_p", 1.0),
            ("repeat_penalty", 1.05),
        ];
        let found = found.unwrap();
        assert_eq!(found.numbers, expected);
        let params = found.params();
        assert_eq!((params.temperature, params.top_k, params.repeat_penalty), (0.6, 20, 1.05));
        let greedy = of(json!({"do_sample": false, "temperature": 0.6})).unwrap();
        assert_eq!(greedy.numbers, [("temperature", 0.0)]);
        assert_eq!(of(json!({"top_k": -1})).unwrap().params().top_k, 0);
        for (name, ..) in KEYS {
            assert!(SamplingField::named(name).unwrap().is_recommended, "{name}");
        }
        assert_eq!(SamplingField::all().iter().filter(|field| field.is_recommended).count(), KEYS.len());
    }

    #[test]
    fn invalid_values_are_refused_with_name_and_value() {
        for (config, words) in [
            (json!({"temperature": -3}), ["temperature", "-3"]),
            (json!({"temperature": "hot"}), ["temperature", "hot"]),
            (json!({"temperature": 1e300}), ["temperature", "inf"]),
            (json!({"top_k": 2.5}), ["top_k", "2.5"]),
            (json!({"top_k": -7}), ["top_k", "-7"]),
            (json!({"top_p": 3}), ["top_p", "3"]),
            (json!({"do_sample": "no"}), ["do_sample", "no"]),
        ] {
            let problem = of(config).unwrap_err().to_string();
            assert!(words.iter().all(|word| problem.contains(word)), "{problem}");
        }
    }
}
