//! Sampling parameters: from flags, else from the model, else Latent's own defaults.

use crate::args::SamplingArgs;
use crate::exit::Usage;
use anyhow::{Context, Result, anyhow};
use latent_engine::sampling::SamplingParams;
use latent_formats::gguf::Metadata;
use latent_formats::{Checkpoint, Source};
use serde_json::{Map, Value, json};

/// A model's recommended parameters.
#[derive(Clone, Debug, Default, PartialEq)]
struct Recommended {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical: Option<f32>,
    repeat_penalty: Option<f32>,
    penalty_last: Option<usize>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
}

/// Parameters of sampling, and which of them the model set.
pub(super) struct Sampling {
    pub(super) params: SamplingParams,
    from_model: Vec<&'static str>,
}

impl Sampling {
    /// Flags override the model's recommendations, which `--no-model-sampling` ignores. Without a seed each call draws one.
    pub(super) fn new(args: &SamplingArgs, checkpoint: &Checkpoint) -> Result<Sampling> {
        let model =
            if args.no_model_sampling { Recommended::default() } else { Recommended::of(checkpoint)? };
        let mut from_model = Vec::new();
        let mut pick = Pick { from_model: &mut from_model };
        let own = SamplingParams::default();
        let params = SamplingParams {
            temperature: pick.one("temperature", args.temp, model.temperature, own.temperature),
            top_k: pick.one("top_k", args.top_k, model.top_k, own.top_k),
            top_p: pick.one("top_p", args.top_p, model.top_p, own.top_p),
            min_p: pick.one("min_p", args.min_p, model.min_p, own.min_p),
            typical: pick.one("typical", args.typical, model.typical, own.typical),
            repeat_penalty: pick.one(
                "repeat_penalty",
                args.repeat_penalty,
                model.repeat_penalty,
                own.repeat_penalty,
            ),
            presence_penalty: args.presence_penalty,
            frequency_penalty: args.frequency_penalty,
            penalty_last: pick.one("penalty_last", args.repeat_last_n, model.penalty_last, own.penalty_last),
            dry_multiplier: args.dry_multiplier,
            dry_base: args.dry_base,
            dry_allowed: args.dry_allowed_length,
            dry_last: own.dry_last,
            xtc_probability: pick.one(
                "xtc_probability",
                args.xtc_probability,
                model.xtc_probability,
                own.xtc_probability,
            ),
            xtc_threshold: pick.one(
                "xtc_threshold",
                args.xtc_threshold,
                model.xtc_threshold,
                own.xtc_threshold,
            ),
            logit_bias: args.logit_bias.iter().map(|word| bias(word)).collect::<Result<_>>()?,
            seed: args.seed.unwrap_or_else(drawn_seed),
        };
        Ok(Sampling { params, from_model })
    }

    /// A line for the start of a run; none if nothing came from the model.
    pub(super) fn note(&self) -> Option<String> {
        if self.from_model.is_empty() {
            return None;
        }
        let report = self.report();
        let words: Vec<String> = self
            .from_model
            .iter()
            .map(|name| format!("{} {}", name.replace('_', "-"), report[name]))
            .collect();
        Some(format!("sampling from the model: {}", words.join(", ")))
    }

    /// The parameters that a model can set, and the names of those it has set.
    pub(super) fn report(&self) -> Value {
        let p = &self.params;
        // the shortest decimal that parses to the same f32
        let real = |value: f32| value.to_string().parse::<f64>().unwrap_or_default();
        json!({
            "temperature": real(p.temperature),
            "top_k": p.top_k,
            "top_p": real(p.top_p),
            "min_p": real(p.min_p),
            "typical": real(p.typical),
            "repeat_penalty": real(p.repeat_penalty),
            "penalty_last": p.penalty_last,
            "xtc_probability": real(p.xtc_probability),
            "xtc_threshold": real(p.xtc_threshold),
            "from_model": self.from_model,
        })
    }
}

/// A fresh seed.
fn drawn_seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.map_or(0, |t| t.as_nanos() as u64)
}

struct Pick<'a> {
    from_model: &'a mut Vec<&'static str>,
}

impl Pick<'_> {
    fn one<T>(&mut self, name: &'static str, flag: Option<T>, model: Option<T>, own: T) -> T {
        match (flag, model) {
            (Some(flag), _) => flag,
            (None, Some(model)) => {
                self.from_model.push(name);
                model
            }
            (None, None) => own,
        }
    }
}

impl Recommended {
    /// The recommendations in the model's files, checked.
    fn of(checkpoint: &Checkpoint) -> Result<Recommended> {
        let (found, place) = match checkpoint.source() {
            Source::Gguf(source) => (Recommended::of_gguf(&source.metadata), "general.sampling.*"),
            Source::HuggingFace(source) => {
                let config = source.generation_config.as_ref().and_then(Value::as_object);
                (config.map_or(Ok(Recommended::default()), Recommended::of_config), "generation_config.json")
            }
        };
        let checked = found.and_then(|found| found.check().map(|()| found));
        checked.with_context(|| {
            format!(
                "{}: {place}: --no-model-sampling runs the model without what it recommends",
                checkpoint.display_name()
            )
        })
    }

    /// The keys that llama.cpp's converter writes. Those of samplers that Latent does not have (Mirostat, an order of samplers) are not read.
    fn of_gguf(metadata: &Metadata) -> Result<Recommended> {
        let real = |name: &str| -> Result<Option<f32>> {
            Ok(metadata.f64(&format!("general.sampling.{name}"))?.map(|value| value as f32))
        };
        let count = |name: &str| -> Result<Option<usize>> {
            metadata.f64(&format!("general.sampling.{name}"))?.map(|value| whole(name, value)).transpose()
        };
        Ok(Recommended {
            temperature: real("temp")?,
            top_k: count("top_k")?,
            top_p: real("top_p")?,
            min_p: real("min_p")?,
            typical: None,
            repeat_penalty: real("penalty_repeat")?,
            penalty_last: count("penalty_last_n")?,
            xtc_probability: real("xtc_probability")?,
            xtc_threshold: real("xtc_threshold")?,
        })
    }

    /// generation_config.json as transformers reads it; `do_sample: false` means greedy sampling.
    fn of_config(config: &Map<String, Value>) -> Result<Recommended> {
        match config.get("do_sample") {
            Some(Value::Bool(false)) => {
                return Ok(Recommended { temperature: Some(0.0), ..Recommended::default() });
            }
            None | Some(Value::Null | Value::Bool(true)) => {}
            Some(other) => return Err(anyhow!("do_sample is {other}, expected true or false")),
        }
        let number = |name: &str| match config.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or_else(|| anyhow!("{name} is {value}, expected a number"))
            }
        };
        let real = |name: &str| -> Result<Option<f32>> { Ok(number(name)?.map(|value| value as f32)) };
        Ok(Recommended {
            temperature: real("temperature")?,
            top_k: number("top_k")?.map(|value| whole("top_k", value)).transpose()?,
            top_p: real("top_p")?,
            min_p: real("min_p")?,
            typical: real("typical_p")?,
            repeat_penalty: real("repetition_penalty")?,
            ..Recommended::default()
        })
    }

    /// Checks the range of every value.
    fn check(&self) -> Result<()> {
        let own = SamplingParams::default();
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            typical: self.typical.unwrap_or(own.typical),
            repeat_penalty: self.repeat_penalty.unwrap_or(own.repeat_penalty),
            xtc_probability: self.xtc_probability.unwrap_or(own.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(own.xtc_threshold),
            ..own
        };
        Ok(params.validate(usize::MAX)?)
    }
}

/// A count; −1 means all, which Latent writes as 0 for top-k, and as more than any context for the window of penalties.
fn whole(name: &str, value: f64) -> Result<usize> {
    match value {
        -1.0 if name == "top_k" => Ok(0),
        -1.0 => Ok(usize::MAX),
        v if v.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&v) => Ok(v as usize),
        other => Err(anyhow!("{name} is {other}, expected a whole number from -1 to {}", u32::MAX)),
    }
}

/// `ID=BIAS`.
fn bias(word: &str) -> Result<(u32, f32)> {
    let parsed = word
        .split_once('=')
        .and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| {
        Usage(format!("--logit-bias {word}: expected ID=BIAS, such as 42=-1.5 or 42=-inf")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: Value) -> Result<Recommended> {
        let found = Recommended::of_config(config.as_object().unwrap())?;
        found.check().map(|()| found)
    }

    #[test]
    fn a_generation_config_is_read_as_transformers_reads_it() {
        let found = of(json!({
            "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null,
            "repetition_penalty": 1.05, "eos_token_id": [1, 2], "typical_p": 1
        }));
        let expected = Recommended {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            typical: Some(1.0),
            repeat_penalty: Some(1.05),
            ..Recommended::default()
        };
        assert_eq!(found.unwrap(), expected);
        let greedy = of(json!({"do_sample": false, "temperature": 0.6})).unwrap();
        assert_eq!(greedy, Recommended { temperature: Some(0.0), ..Recommended::default() });
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
