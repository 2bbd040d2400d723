//! What a user can set.

use super::kind::{DEFAULT_ORDER, SamplerKind};

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
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1: none.
    pub repeat_penalty: f32,
    /// Taken from the logits of recent tokens; 0: none.
    pub presence_penalty: f32,
    /// Taken from the logits of recent tokens for each time that they occurred; 0: none.
    pub frequency_penalty: f32,
    /// How many tokens back the penalties look.
    pub repeat_last_n: usize,
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
    pub mirostat: usize,
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
            typical_p: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
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
