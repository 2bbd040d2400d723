//! Options of loading a model.

use crate::border;
use crate::sized::SizedStruct;
use latent::{Error, LoadOptions};
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr::null;

/// A LoRA adapter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_lora {
    /// A GGUF file as written by llama.cpp, or a PEFT directory, as NUL-terminated UTF-8.
    pub path: *const c_char,
    /// Factor of the adapter's change to the weights. 1: as trained. Must be finite.
    pub scale: f32,
}

/// Options of latent_model_load. A field that is 0 or NULL selects the default:
/// `latent_load_options options = {sizeof options};`
///
/// The library reads the strings and arrays during the call and keeps no pointer to them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_load_options {
    /// sizeof(latent_load_options).
    pub size: usize,
    /// Maximum length of a sequence in tokens. 0: the model's limit, or less if memory does not
    /// suffice.
    pub ctx_size: u64,
    /// Capacity of the KV cache for all sequences, in tokens. 0: the length of one context.
    pub cache_tokens: u64,
    /// Number of threads. 0: one per core that CPU affinity and cgroup quotas allow this process.
    pub threads: u32,
    /// Maximum batch size in tokens. 0: chosen automatically.
    pub batch_size: u32,
    /// Element type of the KV cache: "f32", "f16", "bf16" or "int8". NULL: chosen automatically.
    pub cache_type: *const c_char,
    /// Arithmetic: "default" or "exact". NULL: "default".
    pub precision: *const c_char,
    /// Device: "cpu", "gpu", "gpu:N", "auto" or "reference". NULL: "cpu".
    pub device: *const c_char,
    /// Source of draft tokens for speculative decoding: "ngram", "mtp", "all" or "none". NULL:
    /// "ngram".
    pub draft: *const c_char,
    /// Highest instruction set to use: "auto", "portable", "avx2", "avx512" or "amx". NULL: "auto".
    pub isa: *const c_char,
    /// If not 0, loads the model even if memory seems insufficient.
    pub force: u32,
    /// Sparse attention of models with an indexer: "on", or "off" to attend to all tokens. NULL:
    /// "on".
    pub sparse_attention: *const c_char,
    /// LoRA adapters. They are applied at run time and are not merged into the weights.
    pub lora: *const latent_lora,
    /// Number of elements in `lora`.
    pub lora_count: usize,
}

// SAFETY: it begins with `size`, and has integers and pointers only
unsafe impl SizedStruct for latent_load_options {
    const NAME: &str = "latent_load_options";
}

impl Default for latent_load_options {
    fn default() -> latent_load_options {
        latent_load_options {
            size: size_of::<latent_load_options>(),
            ctx_size: 0,
            cache_tokens: 0,
            threads: 0,
            batch_size: 0,
            cache_type: null(),
            precision: null(),
            device: null(),
            draft: null(),
            isa: null(),
            force: 0,
            sparse_attention: null(),
            lora: null(),
            lora_count: 0,
        }
    }
}

impl latent_load_options {
    /// Validates the options and copies them.
    ///
    /// # Safety
    /// Each string pointer is NULL or points to a NUL-terminated string.
    pub(crate) unsafe fn read(&self) -> Result<LoadOptions, Error> {
        let mut options = LoadOptions::default();
        let count = |value: u64| usize::try_from(value).ok().filter(|value| *value > 0);
        let engine = &mut options.engine;
        engine.context = count(self.ctx_size);
        engine.cache_tokens = count(self.cache_tokens);
        engine.threads = count(self.threads.into());
        engine.max_batch_tokens = count(self.batch_size.into());
        engine.force = self.force != 0;
        let words = [
            ("cache_type", self.cache_type),
            ("precision", self.precision),
            ("device", self.device),
            ("draft", self.draft),
            ("isa", self.isa),
            ("sparse_attention", self.sparse_attention),
        ];
        for (name, word) in words {
            // SAFETY: as the caller promises
            if let Some(word) = unsafe { border::word(word, name) }? {
                options.set(name, word)?;
            }
        }
        Ok(options)
    }

    /// Paths and scales of the LoRA adapters.
    ///
    /// # Safety
    /// `lora` points to `lora_count` elements, and each path is NULL or a NUL-terminated string.
    pub(crate) unsafe fn adapters(&self) -> Result<Vec<(PathBuf, f32)>, Error> {
        // SAFETY: as the caller promises
        let given = unsafe { border::elements(self.lora, self.lora_count, "lora") }?;
        let read = |lora: &latent_lora| {
            // SAFETY: as the caller promises
            let path =
                unsafe { border::word(lora.path, "lora") }?.ok_or_else(|| border::null("a path of lora"))?;
            if !lora.scale.is_finite() {
                let scale = lora.scale;
                let message = format!("lora: the scale of {path} is {scale}, expected a finite number");
                return Err(Error::argument(message));
            }
            Ok((PathBuf::from(path), lora.scale))
        };
        given.iter().map(read).collect()
    }
}
