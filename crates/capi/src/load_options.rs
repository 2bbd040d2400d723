//! Options of loading.

use crate::border;
use crate::sized::SizedStruct;
use latent::{Error, LoadOptions};
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr::null;

/// A LoRA adapter: a GGUF file of llama.cpp, or a folder of PEFT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_lora {
    /// The file or folder, as NUL-terminated UTF-8.
    pub path: *const c_char,
    /// What its changes are multiplied with; 1: as it was trained.
    pub scale: f32,
}

/// How a model is run. Zeros leave everything to Latent: `latent_load_options options = {sizeof
/// options};`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_load_options {
    /// sizeof(latent_load_options).
    pub size: usize,
    /// Tokens of context; 0: the smaller of the model's limit and what fits into memory.
    pub ctx_size: u64,
    /// Tokens that the KV cache holds, all answers together; 0: one context.
    pub cache_tokens: u64,
    /// Threads; 0: one for each core that affinity and cgroup quotas leave to this process.
    pub threads: u32,
    /// Most tokens of one step; 0: chosen.
    pub batch_size: u32,
    /// Element type of the KV cache: "f32", "f16", "bf16" or "int8"; NULL: chosen.
    pub cache_type: *const c_char,
    /// "default" or "exact"; NULL: default.
    pub precision: *const c_char,
    /// What computes: "cpu", "gpu", "gpu:N", "auto" or "reference"; NULL: cpu.
    pub device: *const c_char,
    /// What drafts tokens: "ngram", "mtp", "all" or "none"; NULL: "ngram".
    pub draft: *const c_char,
    /// Highest instruction set: "auto", "portable", "avx2", "avx512" or "amx"; NULL: auto.
    pub isa: *const c_char,
    /// Not 0: load a model even when memory seems too small.
    pub force: u32,
    /// Attention of models with an indexer to selected tokens alone: "on", or "off" for attention
    /// to all; NULL: on.
    pub sparse_attention: *const c_char,
    /// LoRA adapters, which are not merged into the weights.
    pub lora: *const latent_lora,
    /// How many there are.
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
    /// The options that are set.
    ///
    /// # Safety
    /// Its pointers are NULL or texts.
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

    /// The adapters, with their scales.
    ///
    /// # Safety
    /// Its pointers are as its counts say.
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
