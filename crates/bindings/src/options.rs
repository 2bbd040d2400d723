//! Load options, by the names of the command line's flags.

use crate::error::Error;
use latent_engine::EngineOptions;
use latent_threads::PinPolicy;
use std::fmt::Display;
use std::str::FromStr;

/// How a model is run. The default lets Latent choose.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// What computes, by the names that the registry of backends has.
    pub device: String,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        // the thread that runs the model is its own: binding it binds no thread of the caller
        let engine = EngineOptions { pin: PinPolicy::Auto, ..EngineOptions::default() };
        LoadOptions { engine, device: latent_backends::NAMES[0].to_owned() }
    }
}

impl LoadOptions {
    /// The options that [`set`](Self::set) knows.
    pub const WORDS: [&'static str; 7] = ["cache_type", "precision", "device", "draft", "mla", "isa", "pin"];

    /// Sets an option that has a word, under the name of the command line's flag.
    ///
    /// # Errors
    /// A name or a word that is not known; the message lists the words.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), Error> {
        match name {
            "cache_type" => self.engine.cache = Some(parsed(name, word)?),
            "precision" => self.engine.precision = parsed(name, word)?,
            "draft" => self.engine.draft = parsed(name, word)?,
            "mla" => self.engine.mla = parsed(name, word)?,
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
    word.parse().map_err(|problem| Error::argument(format!("{name} {word:?}: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::passes::Precision;

    #[test]
    fn options_have_the_words_of_the_command_line() {
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
