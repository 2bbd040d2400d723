//! Options of text generation.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use crate::sized::{self, SizedStruct};
use latent::{Error, GenerateOptions};
use latent_engine::sampling::SamplingParams;
use std::ffi::c_char;
use std::ptr::null;

/// Bias that is added to the logit of a token.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_logit_bias {
    /// Token id.
    pub token: u32,
    /// Value to add. -INFINITY bans the token.
    pub bias: f32,
}

/// Options of a generation. Initialize them with latent_generate_options_init, then change fields.
///
/// The library reads the arrays during the call that takes the options and keeps no pointer to
/// them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_generate_options {
    /// sizeof(latent_generate_options).
    pub size: usize,
    /// Maximum number of tokens to generate. -1: until the model ends or the context is full.
    pub max_tokens: i64,
    /// Divisor of the logits. 0: greedy, always the most probable token.
    pub temperature: f32,
    /// Top-p: keep the most probable tokens whose probabilities add up to this value. 1: off.
    pub top_p: f32,
    /// Min-p: minimum probability relative to the most probable token. 0: off.
    pub min_p: f32,
    /// Locally typical sampling: keep the tokens closest to the expected information until their
    /// probabilities add up to this value. 1: off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens. 1: off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens. 0: off.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens, once per occurrence. 0: off.
    pub frequency_penalty: f32,
    /// DRY: multiplier of the penalty for tokens that repeat a sequence. 0: off.
    pub dry_multiplier: f32,
    /// DRY: growth of the penalty with the length of the repetition.
    pub dry_base: f32,
    /// XTC: probability that it removes candidates for a token. 0: off.
    pub xtc_probability: f32,
    /// XTC: tokens above this probability may be removed, except the least likely of them.
    pub xtc_threshold: f32,
    /// DRY: longest repetition without a penalty, in tokens.
    pub dry_allowed_length: u32,
    /// Top-k: number of most probable tokens to keep. 0: off.
    pub top_k: u32,
    /// Number of recent tokens that the penalties apply to. -1: all tokens.
    pub repeat_last_n: i64,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Stop strings, each NUL-terminated UTF-8. The text ends before the first occurrence of any of
    /// them.
    pub stop: *const *const c_char,
    /// Number of elements in `stop`.
    pub stop_count: usize,
    /// Biases of individual tokens.
    pub logit_bias: *const latent_logit_bias,
    /// Number of elements in `logit_bias`.
    pub logit_bias_count: usize,
    /// Scale for each LoRA adapter of the model, in the order of loading. NULL: the scales given to
    /// latent_model_load.
    pub lora_scales: *const f32,
    /// Number of elements in `lora_scales`.
    pub lora_scales_count: usize,
}

// SAFETY: it begins with `size`, and has numbers and pointers only
unsafe impl SizedStruct for latent_generate_options {
    const NAME: &str = "latent_generate_options";
}

impl latent_generate_options {
    pub(crate) fn of(options: &GenerateOptions) -> latent_generate_options {
        let p = &options.sampling;
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        latent_generate_options {
            size: size_of::<latent_generate_options>(),
            max_tokens: options.max_tokens.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX)),
            temperature: p.temperature,
            top_p: p.top_p,
            min_p: p.min_p,
            typical_p: p.typical_p,
            repeat_penalty: p.repeat_penalty,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            dry_multiplier: p.dry_multiplier,
            dry_base: p.dry_base,
            xtc_probability: p.xtc_probability,
            xtc_threshold: p.xtc_threshold,
            dry_allowed_length: narrow(p.dry_allowed),
            top_k: narrow(p.top_k),
            repeat_last_n: i64::try_from(p.repeat_last_n).unwrap_or(-1),
            seed: p.seed,
            stop: null(),
            stop_count: 0,
            logit_bias: null(),
            logit_bias_count: 0,
            lora_scales: null(),
            lora_scales_count: 0,
        }
    }

    /// Validates the options and copies them.
    ///
    /// # Safety
    /// Each pointer points to as many elements as its count says.
    pub(crate) unsafe fn read(&self) -> Result<GenerateOptions, Error> {
        // SAFETY: as the caller promises
        let given = unsafe { border::elements(self.stop, self.stop_count, "stop") }?;
        let mut stop = Vec::with_capacity(given.len());
        for text in given {
            // SAFETY: as the caller promises
            let text =
                unsafe { border::word(*text, "stop") }?.ok_or_else(|| border::null("a text of stop"))?;
            stop.push(text.to_owned());
        }
        // SAFETY: as the caller promises
        let bias = unsafe { border::elements(self.logit_bias, self.logit_bias_count, "logit_bias") }?;
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            // −1 means all tokens.
            repeat_last_n: count("repeat_last_n", self.repeat_last_n)?.unwrap_or(usize::MAX),
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed: self.dry_allowed_length as usize,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            logit_bias: bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
            seed: self.seed,
            ..SamplingParams::default()
        };
        let mut options = GenerateOptions::default();
        options.max_tokens = count("max_tokens", self.max_tokens)?;
        (options.stop, options.sampling) = (stop, sampling);
        if self.lora_scales_count > 0 {
            // SAFETY: as the caller promises
            let scales =
                unsafe { border::elements(self.lora_scales, self.lora_scales_count, "lora_scales") }?;
            options.adapter_scales = Some(scales.to_vec());
        }
        Ok(options)
    }
}

/// Converts a count. -1 becomes `None`.
fn count(name: &str, value: i64) -> Result<Option<usize>, Error> {
    match value {
        -1 => Ok(None),
        value => usize::try_from(value)
            .map(Some)
            .map_err(|_| Error::argument(format!("{name} is {value}, expected a count, or -1"))),
    }
}

/// Initializes `options` with the values that the model recommends, otherwise with Latent's
/// defaults, and with a random seed.
///
/// `size` must be sizeof(latent_generate_options). Call this function for each generation that
/// should have another seed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_generate_options_init(
    model: *const latent_model,
    options: *mut latent_generate_options,
    size: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = border::given(model, "model")?;
            sized::write(options, size, &latent_generate_options::of(&model.0.generate_options()))
        })
    }
}
