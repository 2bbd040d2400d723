//! Load options.

use crate::error::Error;
use latent_engine::scheduler::SchedulerOptions;
use latent_engine::{Draft, EngineOptions};
use latent_threads::PinPolicy;
use latent_types::Setting;
use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

/// Options for loading and running a model. The default lets Latent choose.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// The device: `cpu`, `reference`, `gpu`, `gpu:N` or `auto`.
    pub device: String,
    /// Options of the scheduler. By default, the number of waiting answers is not limited.
    pub scheduler: SchedulerOptions,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        // The model runs on a thread of its own, so pinning binds no thread of the caller.
        let engine = EngineOptions { pin: PinPolicy::Auto, draft: Draft::Ngram, ..EngineOptions::default() };
        // Callers block until their job runs, so the queue accepts any number of them.
        let (max_waiting, max_waiting_tokens) = (usize::MAX, usize::MAX);
        let scheduler = SchedulerOptions { max_waiting, max_waiting_tokens, ..SchedulerOptions::default() };
        LoadOptions { engine, device: latent_backends::NAMES[0].to_owned(), scheduler }
    }
}

impl LoadOptions {
    /// The names of the options of [`set`](Self::set).
    pub const WORDS: [&'static str; 8] =
        ["cache_type", "precision", "device", "draft", "mla", "sparse_attention", "isa", "pin"];

    /// Replaces the names of options in an error by those of the C and Python APIs, such as
    /// `ctx_size` for `context`.
    pub fn by_word(text: &str) -> Cow<'_, str> {
        Setting::rename(text, |setting| {
            Some(match setting {
                Setting::Context => "ctx_size",
                Setting::BatchTokens => "batch_size",
                Setting::Cache => "cache_type",
                Setting::CacheTokens => "cache_tokens",
                Setting::Tier => "isa",
                Setting::Device
                | Setting::Draft
                | Setting::Force
                | Setting::Mla
                | Setting::Precision
                | Setting::SparseAttention
                | Setting::Threads => setting.name(),
                _ => return None,
            })
        })
    }

    /// Sets an option by its name.
    ///
    /// # Errors
    /// If the name or the value is unknown. The message lists the known ones.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), Error> {
        match name {
            "cache_type" => self.engine.cache = Some(parsed(name, word)?),
            "precision" => self.engine.precision = parsed(name, word)?,
            "draft" => self.engine.draft = parsed(name, word)?,
            "mla" => self.engine.mla = parsed(name, word)?,
            "sparse_attention" => self.engine.sparse = parsed(name, word)?,
            "pin" => self.engine.pin = parsed(name, word)?,
            "isa" if word == "auto" => self.engine.tier = None,
            "isa" => self.engine.tier = Some(parsed(name, word)?),
            "device" => {
                // Only checks that the device exists; loading opens it again.
                latent_backends::by_name(word)?;
                word.clone_into(&mut self.device);
            }
            _ => {
                return Err(Error::argument(format!(
                    "unknown option {name:?}; expected one of {}",
                    Self::WORDS.join(", ")
                )));
            }
        }
        Ok(())
    }
}

fn parsed<T: FromStr<Err: Display>>(name: &str, word: &str) -> Result<T, Error> {
    word.parse().map_err(|problem| Error::argument_named(name, format!("{name} {word:?}: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::passes::Precision;

    #[test]
    fn options_are_set_by_name() {
        let mut options = LoadOptions::default();
        for (name, word) in
            [("cache_type", "int8"), ("precision", "exact"), ("device", "reference"), ("isa", "portable")]
        {
            options.set(name, word).unwrap();
        }
        assert_eq!(options.engine.precision, Precision::Exact);
        assert_eq!(options.device, "reference");
        assert!(options.engine.cache.is_some() && options.engine.tier.is_some());
        options.set("isa", "auto").unwrap();
        assert_eq!(options.engine.tier, None);
    }

    #[test]
    fn errors_list_the_known_words() {
        let mut options = LoadOptions::default();
        for (name, word, expected) in [
            ("cache_type", "int7", "int8"),
            ("device", "tpu", "cpu, reference"),
            ("precision", "half", "exact"),
            ("isa", "sse", "avx2"),
            ("cachetype", "int8", "cache_type"),
        ] {
            let error = options.set(name, word).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
