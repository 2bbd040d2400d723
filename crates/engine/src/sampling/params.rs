//! What a user can set.

use super::kind::{DEFAULT_ORDER, SamplerKind};
use crate::error::EngineError;
use std::fmt;

/// Parameters of sampling. The default of each sampler leaves everything as it is, but for those that chat programs commonly use:
/// temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0: always the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest; 0: all.
    pub top_k: usize,
    /// Keeps the likeliest that together reach this probability; 1: all.
    pub top_p: f32,
    /// Keeps what is at least this likely, relative to the likeliest; 0: all.
    pub min_p: f32,
    /// Keeps what is closest to the expected information until this probability is reached; 1: all.
    pub typical: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1: none.
    pub repeat_penalty: f32,
    /// Taken from the logits of recent tokens; 0: none.
    pub presence_penalty: f32,
    /// Taken from the logits of recent tokens for each time that they occurred; 0: none.
    pub frequency_penalty: f32,
    /// How many tokens back the penalties look.
    pub penalty_last: usize,
    /// Strength of DRY; 0: none.
    pub dry_multiplier: f32,
    /// Growth of DRY with the length of a repetition.
    pub dry_base: f32,
    /// Longest repetition that DRY allows.
    pub dry_allowed: usize,
    /// How many tokens back DRY looks; 0: none, so that it is off.
    pub dry_last: usize,
    /// Texts that no repetition reaches across; none: ends of lines and clauses, and control tokens.
    pub dry_breakers: Option<Vec<String>>,
    /// Keeps logits within this many standard deviations of the largest; 0 or less: all.
    pub top_n_sigma: f32,
    /// How far the temperature moves with the entropy of the candidates, up and down; 0: not at all.
    pub dynatemp_range: f32,
    /// Exponent of the normalised entropy of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Version of Mirostat, 1 or 2, which takes the place of all truncating samplers; 0: none.
    pub mirostat: u32,
    /// Surprise in bits that Mirostat aims at.
    pub mirostat_tau: f32,
    /// Learning rate of Mirostat.
    pub mirostat_eta: f32,
    /// Probability near which adaptive-p chooses tokens; less than 0: off.
    pub adaptive_target: f32,
    /// Decay of the average that moves the target of adaptive-p.
    pub adaptive_decay: f32,
    /// Candidates that top-p, min-p, typical and XTC leave at least.
    pub min_keep: usize,
    /// Which samplers run, in this order; none: all, in llama.cpp's order.
    pub samplers: Option<Vec<SamplerKind>>,
    /// The only tokens that can be chosen; none: all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Chance of XTC at each token; 0: none.
    pub xtc_probability: f32,
    /// What XTC counts as likely.
    pub xtc_threshold: f32,
    /// Added to the logits of tokens; −∞ bans.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random choice.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed: 2,
            dry_last: usize::MAX,
            dry_breakers: None,
            top_n_sigma: -1.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            min_keep: 0,
            samplers: None,
            allowed_tokens: None,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// The likeliest token, always.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is out of its range, with the range.
    pub fn validate(&self, vocab: usize) -> Result<(), EngineError> {
        self.check(vocab).map_err(|error| EngineError::Options(error.to_string()))
    }

    /// Checks every parameter, and says which is wrong.
    ///
    /// # Errors
    /// The first that is out of its range, with its name and the range.
    pub fn check(&self, vocab: usize) -> Result<(), ParamError> {
        let largest = f32::MAX;
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical", self.typical, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
            ("dry_multiplier", self.dry_multiplier, 0.0, 100.0),
            ("dry_base", self.dry_base, 1.0, 100.0),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.0, 1.0),
            ("top_n_sigma", self.top_n_sigma, -largest, largest),
            ("dynatemp_range", self.dynatemp_range, 0.0, 100.0),
            ("dynatemp_exponent", self.dynatemp_exponent, 0.0, 100.0),
            ("mirostat_tau", self.mirostat_tau, 0.0, 100.0),
            ("mirostat_eta", self.mirostat_eta, 0.0, 10.0),
            ("adaptive_target", self.adaptive_target, -largest, 1.0),
            ("adaptive_decay", self.adaptive_decay, 0.0, 0.99),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                let expected = match (low == -largest, high == largest) {
                    (true, true) => "a finite number".to_owned(),
                    (true, false) => format!("a number of at most {high}"),
                    _ => format!("a number from {low} to {high}"),
                };
                return Err(ParamError { name, problem: format!("{name} is {value}, expected {expected}") });
            }
        }
        if self.mirostat > 2 {
            let problem = format!("mirostat is {}, expected 0 (off), 1 or 2", self.mirostat);
            return Err(ParamError { name: "mirostat", problem });
        }
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY {
                let problem = format!(
                    "logit bias {bias} for token {id}: expected a token below {vocab} and a finite number or -inf"
                );
                return Err(ParamError { name: "logit_bias", problem });
            }
        }
        let allowed = self.allowed_tokens.as_deref();
        if let Some(id) = allowed.unwrap_or_default().iter().find(|id| **id as usize >= vocab) {
            let problem = format!("token {id} is allowed: expected a token below {vocab}");
            return Err(ParamError { name: "allowed_tokens", problem });
        }
        if allowed.is_some_and(<[u32]>::is_empty) {
            let problem = "the list of allowed tokens is empty: name at least one".into();
            return Err(ParamError { name: "allowed_tokens", problem });
        }
        Ok(())
    }

    /// The samplers that run, in their order. Mirostat takes the place of those that truncate.
    pub fn order(&self) -> Vec<SamplerKind> {
        let adapts = self.adaptive_target >= 0.0;
        match &self.samplers {
            Some(order) => order.clone(),
            None => {
                DEFAULT_ORDER.into_iter().filter(|kind| adapts || *kind != SamplerKind::AdaptiveP).collect()
            }
        }
    }

    /// Whether the likeliest token is always taken.
    pub(super) fn is_greedy(&self, order: &[SamplerKind]) -> bool {
        let divides = self.mirostat > 0 || order.contains(&SamplerKind::Temperature);
        let dynamic = self.mirostat == 0 && self.dynatemp_range > 0.0;
        divides && self.temperature <= 0.0 && !dynamic
    }
}

/// A parameter out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamError {
    /// The field of [`SamplingParams`].
    pub name: &'static str,
    problem: String,
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for ParamError {}
