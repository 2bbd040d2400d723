//! Sampling parameters: from flags, else from the model, else Latent's own defaults.

use crate::args::SamplingArgs;
use crate::exit::UsageError;
use crate::progress::LateBar;
use anyhow::{Context, Result};
use latent::{AnswerRequest, ContextShift, Model, Prompt};
use latent_engine::sampling::{RecommendedParams, SamplerKind, SamplingField, SamplingParams};
use latent_formats::Checkpoint;
use serde_json::{Map, Value, json};

/// Sampling parameters, and which of them come from the model.
pub(super) struct Sampling {
    pub(super) params: SamplingParams,
    from_model: Vec<&'static str>,
}

impl Sampling {
    /// Combines flags, the model's recommendations (unless `--no-model-sampling`) and defaults.
    /// Without a seed, each call draws one.
    pub(super) fn new(args: &SamplingArgs, checkpoint: &Checkpoint) -> Result<Sampling> {
        let model =
            if args.no_model_sampling { RecommendedParams::default() } else { recommended(checkpoint)? };
        let order = args.order();
        let mut from_model: Vec<&'static str> = model.numbers.iter().map(|(name, _)| *name).collect();
        from_model.retain(|name| !args.numbers.has(name));
        from_model.extend((order.is_none() && model.samplers.is_some()).then_some("samplers"));
        let mut params = SamplingParams {
            dry_breakers: args.breakers(),
            samplers: order.or_else(|| model.samplers.clone()),
            logit_bias: args.logit_bias.iter().map(|word| bias(word)).collect::<Result<_>>()?,
            seed: args.fixed_seed().unwrap_or_else(drawn_seed),
            ..SamplingParams::default()
        };
        model.apply(&mut params);
        // Last: flags override the model's recommendations.
        args.numbers.apply(&mut params);
        Ok(Sampling { params, from_model })
    }

    /// The request of an answer. `bar` shows the progress of its prompt.
    pub(super) fn request(
        &self,
        args: &SamplingArgs,
        model: &Model,
        prompt: impl Into<Prompt>,
        shift: Option<ContextShift>,
        mut bar: LateBar,
    ) -> AnswerRequest {
        let request = model.complete(prompt).sampling(self.params.clone());
        request.prompt_progress(move |done, total| bar.advance(done, total)).request(|request| {
            // The scheduler bounds an answer that shifts its context and has no limit of its own.
            request.max_tokens = args.max_tokens().or(shift.map(|_| usize::MAX));
            request.ignore_eos = args.ignore_eos;
            request.stop.clone_from(&args.stop);
            request.shift = shift;
        })
    }

    /// A line for the start of a run; `None` if no parameter comes from the model.
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

    /// The parameters that a model can recommend, and the names of those that it did.
    pub(super) fn report(&self) -> Value {
        let fields = SamplingField::all().iter().filter(|field| field.is_recommended);
        let mut report: Map<String, Value> =
            fields.map(|field| (field.name.to_owned(), field.to_json(&self.params))).collect();
        report.insert("samplers".into(), self.params.order().into_iter().map(SamplerKind::name).collect());
        report.insert("from_model".into(), json!(self.from_model));
        Value::Object(report)
    }
}

/// The model's recommendations.
fn recommended(checkpoint: &Checkpoint) -> Result<RecommendedParams> {
    RecommendedParams::of(checkpoint)
        .context("cannot read the recommended sampling (--no-model-sampling ignores it)")
}

/// A fresh seed.
fn drawn_seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // The low 64 bits of the nanoseconds change with every call.
    time.map_or(0, |t| t.as_nanos() as u64)
}

/// Parses `ID=BIAS`, or `ID+BIAS` and `ID-BIAS` as in llama.cpp.
fn bias(word: &str) -> Result<(u32, f32)> {
    // The sign belongs to the bias, so the text is split before it.
    let sign = || word.find(['+', '-']).map(|at| word.split_at(at));
    let parsed = word
        .split_once('=')
        .or_else(sign)
        .and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| {
        UsageError(format!("--logit-bias {word}: expected ID=BIAS, such as 42=-1.5 or 42=-inf")).into()
    })
}
