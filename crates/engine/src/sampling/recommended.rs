//! The sampling parameters that a model's files recommend.

use super::{SamplerKind, SamplingParams};
use crate::error::EngineError;
use latent_formats::gguf::Metadata;
use latent_formats::{Checkpoint, CheckpointSource};
use serde_json::{Map, Value};

/// A model's recommended parameters: `general.sampling.*` of a GGUF file, generation_config.json of a folder.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of SamplingParams")]
pub struct RecommendedParams {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub penalty_last: Option<usize>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub mirostat: Option<u32>,
    pub mirostat_tau: Option<f32>,
    pub mirostat_eta: Option<f32>,
    pub samplers: Option<Vec<SamplerKind>>,
}

impl RecommendedParams {
    /// The recommendations in the model's files.
    ///
    /// # Errors
    /// A value of another type or out of its range; the message names the file and the place in it.
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
        let checked = found.and_then(|found| found.params().validate(usize::MAX).map(|()| found));
        checked
            .map_err(|error| EngineError::Options(format!("{}: {place}: {error}", checkpoint.display_name())))
    }

    /// The parameters, with Latent's own where the model recommends none.
    pub fn params(&self) -> SamplingParams {
        let own = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            typical: self.typical.unwrap_or(own.typical),
            repeat_penalty: self.repeat_penalty.unwrap_or(own.repeat_penalty),
            penalty_last: self.penalty_last.unwrap_or(own.penalty_last),
            xtc_probability: self.xtc_probability.unwrap_or(own.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(own.xtc_threshold),
            mirostat: self.mirostat.unwrap_or(own.mirostat),
            mirostat_tau: self.mirostat_tau.unwrap_or(own.mirostat_tau),
            mirostat_eta: self.mirostat_eta.unwrap_or(own.mirostat_eta),
            samplers: self.samplers.clone(),
            ..own
        }
    }

    /// The keys that llama.cpp's converter writes.
    fn of_gguf(metadata: &Metadata) -> Result<RecommendedParams, EngineError> {
        let real = |name: &str| -> Result<Option<f32>, EngineError> {
            Ok(metadata.f64(&format!("general.sampling.{name}"))?.map(|value| value as f32))
        };
        let count = |name: &str| -> Result<Option<usize>, EngineError> {
            metadata.f64(&format!("general.sampling.{name}"))?.map(|value| whole(name, value)).transpose()
        };
        let sequence = metadata.str("general.sampling.sequence")?.filter(|names| !names.is_empty());
        let order = |names: &str| SamplerKind::order_of_names(names.split(';'));
        Ok(RecommendedParams {
            temperature: real("temp")?,
            top_k: count("top_k")?,
            top_p: real("top_p")?,
            min_p: real("min_p")?,
            typical: None,
            repeat_penalty: real("penalty_repeat")?,
            penalty_last: count("penalty_last_n")?,
            xtc_probability: real("xtc_probability")?,
            xtc_threshold: real("xtc_threshold")?,
            mirostat: count("mirostat")?.map(|version| u32::try_from(version).unwrap_or(u32::MAX)),
            mirostat_tau: real("mirostat_tau")?,
            mirostat_eta: real("mirostat_eta")?,
            samplers: sequence.map(order).transpose()?,
        })
    }

    /// generation_config.json as transformers reads it; `do_sample: false` means greedy sampling.
    fn of_config(config: &Map<String, Value>) -> Result<RecommendedParams, EngineError> {
        match config.get("do_sample") {
            Some(Value::Bool(false)) => {
                return Ok(RecommendedParams { temperature: Some(0.0), ..RecommendedParams::default() });
            }
            None | Some(Value::Null | Value::Bool(true)) => {}
            Some(other) => return Err(wrong(format!("do_sample is {other}, expected true or false"))),
        }
        let number = |name: &str| match config.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or_else(|| wrong(format!("{name} is {value}, expected a number")))
            }
        };
        let real =
            |name: &str| -> Result<Option<f32>, EngineError> { Ok(number(name)?.map(|value| value as f32)) };
        Ok(RecommendedParams {
            temperature: real("temperature")?,
            top_k: number("top_k")?.map(|value| whole("top_k", value)).transpose()?,
            top_p: real("top_p")?,
            min_p: real("min_p")?,
            typical: real("typical_p")?,
            repeat_penalty: real("repetition_penalty")?,
            ..RecommendedParams::default()
        })
    }
}

fn wrong(problem: String) -> EngineError {
    EngineError::Options(problem)
}

/// A count; −1 means all, which Latent writes as 0 for top-k, and as more than any context for the window of penalties.
fn whole(name: &str, value: f64) -> Result<usize, EngineError> {
    match value {
        -1.0 if name == "top_k" => Ok(0),
        -1.0 => Ok(usize::MAX),
        v if v.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&v) => Ok(v as usize),
        other => Err(wrong(format!("{name} is {other}, expected a whole number from -1 to {}", u32::MAX))),
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
        let expected = RecommendedParams {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            typical: Some(1.0),
            repeat_penalty: Some(1.05),
            ..RecommendedParams::default()
        };
        assert_eq!(found.unwrap(), expected);
        let greedy = of(json!({"do_sample": false, "temperature": 0.6})).unwrap();
        assert_eq!(greedy, RecommendedParams { temperature: Some(0.0), ..RecommendedParams::default() });
        assert_eq!(of(json!({"top_k": -1})).unwrap().top_k, Some(0));
    }

    #[test]
    fn what_is_no_setting_is_refused_with_its_name_and_value() {
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
