//! Options of generating.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use crate::sized::{self, SizedStruct};
use latent::{Error, GenerateOptions};
use latent_engine::sampling::SamplingParams;
use std::ffi::c_char;
use std::ptr::null;

/// What is added to the logit of a token; -INFINITY bans it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_logit_bias {
    /// The token.
    pub token: u32,
    /// What is added.
    pub bias: f32,
}

/// How an answer is generated. Fill it with latent_generate_options_init, and then change what you
/// like.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_generate_options {
    /// sizeof(latent_generate_options).
    pub size: usize,
    /// Most tokens; -1: until the model ends or the context is full.
    pub max_tokens: i64,
    /// Divides the logits; 0: always the likeliest token.
    pub temperature: f32,
    /// Keeps what together reaches this probability; 1: all.
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
    /// Strength of DRY; 0: none.
    pub dry_multiplier: f32,
    /// Growth of DRY with the length of a repetition.
    pub dry_base: f32,
    /// Chance of XTC at each token; 0: none.
    pub xtc_probability: f32,
    /// What XTC counts as likely.
    pub xtc_threshold: f32,
    /// Longest repetition that DRY allows.
    pub dry_allowed_length: u32,
    /// Keeps this many of the likeliest; 0: all.
    pub top_k: u32,
    /// How many tokens back the penalties look; -1: all.
    pub repeat_last_n: i64,
    /// Seed of the random choice.
    pub seed: u64,
    /// Texts before which the answer ends: NUL-terminated UTF-8.
    pub stop: *const *const c_char,
    /// How many there are.
    pub stop_count: usize,
    /// Biases of tokens.
    pub logit_bias: *const latent_logit_bias,
    /// How many there are.
    pub logit_bias_count: usize,
    /// A scale for each LoRA adapter of the model, in the order in which they were loaded; NULL:
    /// the scales that they were loaded with.
    pub lora_scales: *const f32,
    /// How many there are.
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

    /// The options, checked as far as they are C's.
    ///
    /// # Safety
    /// Its pointers are as its counts say.
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

/// A count, or none for -1.
fn count(name: &str, value: i64) -> Result<Option<usize>, Error> {
    match value {
        -1 => Ok(None),
        value => usize::try_from(value)
            .map(Some)
            .map_err(|_| Error::argument(format!("{name} is {value}, expected a count, or -1"))),
    }
}

/// Fills options with what the model recommends, else Latent's own, and a fresh seed. `size` is
/// sizeof(latent_generate_options).
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
