//! Sampling parameters: from flags, else from the model, else Latent's own defaults.

use crate::args::SamplingArgs;
use crate::exit::UsageError;
use anyhow::{Context, Result};
use latent_engine::sampling::{RecommendedParams, SamplerKind, SamplingParams};
use latent_formats::Checkpoint;
use serde_json::{Value, json};

/// Parameters of sampling, and which of them the model set.
pub(super) struct Sampling {
    pub(super) params: SamplingParams,
    from_model: Vec<&'static str>,
}

impl Sampling {
    /// Flags override the model's recommendations, which `--no-model-sampling` ignores. Without a seed each call draws one.
    pub(super) fn new(args: &SamplingArgs, checkpoint: &Checkpoint) -> Result<Sampling> {
        let model =
            if args.no_model_sampling { RecommendedParams::default() } else { recommended(checkpoint)? };
        let mut from_model = Vec::new();
        let mut pick = SettingPicker { from_model: &mut from_model };
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
            dry_last: args.dry_penalty_last_n.unwrap_or(own.dry_last),
            dry_breakers: args.breakers(),
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
            top_n_sigma: args.top_n_sigma.unwrap_or(own.top_n_sigma),
            dynatemp_range: args.dynatemp_range.unwrap_or(own.dynatemp_range),
            dynatemp_exponent: args.dynatemp_exp.unwrap_or(own.dynatemp_exponent),
            mirostat: pick.one("mirostat", args.mirostat, model.mirostat, own.mirostat),
            mirostat_tau: pick.one("mirostat_tau", args.mirostat_ent, model.mirostat_tau, own.mirostat_tau),
            mirostat_eta: pick.one("mirostat_eta", args.mirostat_lr, model.mirostat_eta, own.mirostat_eta),
            adaptive_target: args.adaptive_target.unwrap_or(own.adaptive_target),
            adaptive_decay: args.adaptive_decay.unwrap_or(own.adaptive_decay),
            min_keep: args.min_keep.unwrap_or(own.min_keep),
            samplers: pick.one("samplers", args.order().map(Some), model.samplers.map(Some), None),
            allowed_tokens: None,
            logit_bias: args.logit_bias.iter().map(|word| bias(word)).collect::<Result<_>>()?,
            seed: args.fixed_seed().unwrap_or_else(drawn_seed),
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
            "mirostat": p.mirostat,
            "mirostat_tau": real(p.mirostat_tau),
            "mirostat_eta": real(p.mirostat_eta),
            "samplers": p.order().into_iter().map(SamplerKind::name).collect::<Vec<_>>(),
            "from_model": self.from_model,
        })
    }
}

/// What the model recommends.
fn recommended(checkpoint: &Checkpoint) -> Result<RecommendedParams> {
    RecommendedParams::of(checkpoint).context("--no-model-sampling runs the model without what it recommends")
}

/// A fresh seed.
fn drawn_seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.map_or(0, |t| t.as_nanos() as u64)
}

struct SettingPicker<'a> {
    from_model: &'a mut Vec<&'static str>,
}

impl SettingPicker<'_> {
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

/// `ID=BIAS`, or `ID+BIAS` and `ID-BIAS` as llama.cpp has it.
fn bias(word: &str) -> Result<(u32, f32)> {
    let sign = || word.find(['+', '-']).map(|at| word.split_at(at));
    let parsed = word
        .split_once('=')
        .or_else(sign)
        .and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| {
        UsageError(format!("--logit-bias {word}: expected ID=BIAS, such as 42=-1.5 or 42=-inf")).into()
    })
}
