//! Sampling parameters.

use super::kind::{DEFAULT_ORDER, SamplerKind};

/// Parameters of sampling. By default, all samplers are off but those that chat programs commonly
/// use: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits. 0: always the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens. 0: all.
    pub top_k: usize,
    /// Keeps the likeliest tokens whose probabilities add up to this. 1: all.
    pub top_p: f32,
    /// Keeps tokens with at least this probability relative to the likeliest. 0: all.
    pub min_p: f32,
    /// Keeps the tokens closest to the expected information until their probabilities add up to
    /// this. 1: all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens. 1: off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens. 0: off.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens for each occurrence. 0: off.
    pub frequency_penalty: f32,
    /// Number of recent tokens for the penalties.
    pub repeat_last_n: usize,
    /// Multiplier of the DRY penalty. 0: off.
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty with the length of a repetition.
    pub dry_base: f32,
    /// Longest repetition without a DRY penalty.
    pub dry_allowed: usize,
    /// Number of recent tokens that DRY searches. 0: off.
    pub dry_last: usize,
    /// Texts that end a repetition for DRY. `None`: ends of lines and clauses, and control tokens.
    pub dry_breakers: Option<Vec<String>>,
    /// Keeps logits within this many standard deviations of the largest. 0 or less: all.
    pub top_n_sigma: f32,
    /// Maximum change of the temperature, up or down, by the entropy of the candidates. 0: off.
    pub dynatemp_range: f32,
    /// Exponent of the normalized entropy for the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Version of Mirostat, 1 or 2, which replaces all truncating samplers. 0: off.
    pub mirostat: usize,
    /// Target surprise of Mirostat, in bits.
    pub mirostat_tau: f32,
    /// Learning rate of Mirostat.
    pub mirostat_eta: f32,
    /// Target probability of adaptive-p. Less than 0: off.
    pub adaptive_target: f32,
    /// Decay of the moving average of adaptive-p.
    pub adaptive_decay: f32,
    /// Minimum number of candidates that top-p, min-p, typical and XTC keep.
    pub min_keep: usize,
    /// The samplers that run, in this order. `None`: all, in llama.cpp's order.
    pub samplers: Option<Vec<SamplerKind>>,
    /// The only tokens that can be chosen. `None`: all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Probability that XTC acts on a token. 0: off.
    pub xtc_probability: f32,
    /// Minimum probability of tokens that XTC may remove.
    pub xtc_threshold: f32,
    /// Added to the logits of tokens. −∞ bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers.
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
    /// Greedy sampling: always the likeliest token.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// The samplers that run, in their order. If Mirostat is on, it replaces the truncating ones.
    pub fn order(&self) -> Vec<SamplerKind> {
        let adapts = self.adaptive_target >= 0.0;
        match &self.samplers {
            Some(order) => order.clone(),
            None => {
                DEFAULT_ORDER.into_iter().filter(|kind| adapts || *kind != SamplerKind::AdaptiveP).collect()
            }
        }
    }

    /// Whether the likeliest token is always chosen.
    pub(super) fn is_greedy(&self, order: &[SamplerKind]) -> bool {
        // An order without the temperature sampler ignores the temperature. Mirostat applies it
        // itself.
        let divides = self.mirostat > 0 || order.contains(&SamplerKind::Temperature);
        // With a dynamic range, the temperature can be above 0 although its center is not.
        let dynamic = self.mirostat == 0 && self.dynatemp_range > 0.0;
        divides && self.temperature <= 0.0 && !dynamic
    }
}
