//! Load options.

use crate::error::Error;
use latent_engine::scheduler::SchedulerOptions;
use latent_engine::{Draft, EngineOptions};
use latent_threads::PinPolicy;
use latent_types::Setting;
use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

/// How a model is run. The default lets Latent choose.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// What computes: `cpu`, `reference`, `gpu`, `gpu:N` or `auto`.
    pub device: String,
    /// Options of the scheduler. Any number of answers may wait, unless they say otherwise.
    pub scheduler: SchedulerOptions,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        // the thread that runs the model is its own: binding it binds no thread of the caller
        let engine = EngineOptions { pin: PinPolicy::Auto, draft: Draft::Ngram, ..EngineOptions::default() };
        // callers block until their job runs, so the queue accepts any number of them
        let (max_waiting, max_waiting_tokens) = (usize::MAX, usize::MAX);
        let scheduler = SchedulerOptions { max_waiting, max_waiting_tokens, ..SchedulerOptions::default() };
        LoadOptions { engine, device: latent_backends::NAMES[0].to_owned(), scheduler }
    }
}

impl LoadOptions {
    /// The options that [`set`](Self::set) knows.
    pub const WORDS: [&'static str; 8] =
        ["cache_type", "precision", "device", "draft", "mla", "sparse_attention", "isa", "pin"];

    /// The text of an error with the names that C and Python give to options, such as `ctx_size` for `context`.
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

    /// Sets an option that has a word, by its name.
    ///
    /// # Errors
    /// A name or a word that is not known; the message lists the words.
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
    fn options_are_set_by_words() {
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
    fn a_word_that_is_not_known_is_named_with_those_that_are() {
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
