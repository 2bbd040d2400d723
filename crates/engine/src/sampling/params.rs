//! What a user can set.

use crate::error::EngineError;

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
    /// How many tokens back DRY looks; 0: all.
    pub dry_last: usize,
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
            dry_last: 0,
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
        let inside = |name: &str, value: f32, low: f32, high: f32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(EngineError::Options(format!("{name} is {value}, expected a number from {low} to {high}")))
        };
        inside("temperature", self.temperature, 0.0, 100.0)?;
        inside("top_p", self.top_p, 0.0, 1.0)?;
        inside("min_p", self.min_p, 0.0, 1.0)?;
        inside("typical", self.typical, 0.0, 1.0)?;
        inside("repeat_penalty", self.repeat_penalty, 0.01, 100.0)?;
        inside("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        inside("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        inside("dry_multiplier", self.dry_multiplier, 0.0, 100.0)?;
        inside("dry_base", self.dry_base, 1.0, 100.0)?;
        inside("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        inside("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?;
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY {
                return Err(EngineError::Options(format!(
                    "logit bias {bias} for token {id}: expected a token below {vocab} and a finite number or -inf"
                )));
            }
        }
        Ok(())
    }
}
