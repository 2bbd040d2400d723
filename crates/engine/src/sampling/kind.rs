//! The samplers of the chain, by name.

use crate::error::EngineError;
use std::fmt;

/// A sampler of the chain, under llama.cpp's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerKind {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// Penalties on repeated sequences.
    Dry,
    /// Keeps logits within a number of standard deviations of the largest.
    TopNSigma,
    /// Keeps a number of the likeliest tokens.
    TopK,
    /// Locally typical sampling.
    Typical,
    /// Keeps the likeliest tokens whose probabilities add up to a threshold.
    TopP,
    /// Keeps tokens by their probability relative to the likeliest.
    MinP,
    /// Randomly removes the likeliest tokens.
    Xtc,
    /// Divides logits by the temperature.
    Temperature,
    /// Prefers tokens near a probability.
    AdaptiveP,
    /// Merges tokens of which one is a prefix of the other, for code completion.
    Infill,
}

/// Name, letter in llama.cpp's `--sampler-seq`, and further names.
const NAMES: [(SamplerKind, &str, char, &[&str]); 11] = [
    (SamplerKind::Penalties, "penalties", 'e', &[]),
    (SamplerKind::Dry, "dry", 'd', &[]),
    (SamplerKind::TopNSigma, "top_n_sigma", 's', &["top_nsigma"]),
    (SamplerKind::TopK, "top_k", 'k', &[]),
    (SamplerKind::Typical, "typ_p", 'y', &["typ", "typical", "typical_p"]),
    (SamplerKind::TopP, "top_p", 'p', &["nucleus"]),
    (SamplerKind::MinP, "min_p", 'm', &[]),
    (SamplerKind::Xtc, "xtc", 'x', &[]),
    (SamplerKind::Temperature, "temperature", 't', &["temp"]),
    (SamplerKind::AdaptiveP, "adaptive_p", 'a', &[]),
    (SamplerKind::Infill, "infill", 'i', &[]),
];

/// The default order: llama.cpp's, with adaptive-p, which is off without a target.
pub(super) const DEFAULT_ORDER: [SamplerKind; 10] = [
    SamplerKind::Penalties,
    SamplerKind::Dry,
    SamplerKind::TopNSigma,
    SamplerKind::TopK,
    SamplerKind::Typical,
    SamplerKind::TopP,
    SamplerKind::MinP,
    SamplerKind::Xtc,
    SamplerKind::Temperature,
    SamplerKind::AdaptiveP,
];

/// Maximum length of an order: repeated samplers cost time at each token.
const MAX_ORDER: usize = 32;

impl SamplerKind {
    /// The name in llama.cpp's lists.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.1)
    }

    /// The sampler with a name of llama.cpp. Underscores may be hyphens or omitted.
    ///
    /// # Errors
    /// For an unknown name. The message lists all names.
    pub fn of_name(name: &str) -> Result<SamplerKind, EngineError> {
        let plain = |name: &str| name.trim().to_ascii_lowercase().replace(['_', '-'], "");
        let wanted = plain(name);
        let known = NAMES.iter().find(|(_, own, _, others)| {
            plain(own) == wanted || others.iter().any(|other| plain(other) == wanted)
        });
        known.map(|entry| entry.0).ok_or_else(|| {
            let names = NAMES.map(|entry| entry.1).join(", ");
            EngineError::Options(format!("unknown sampler {name:?}: expected {names}"))
        })
    }

    /// An order of samplers from names.
    ///
    /// # Errors
    /// An unknown name, or too many.
    pub fn order_of_names<'n>(
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<SamplerKind>, EngineError> {
        // One name more than allowed is enough for `within` to refuse the order.
        within(names.into_iter().take(MAX_ORDER + 1).map(SamplerKind::of_name).collect::<Result<_, _>>()?)
    }

    /// An order of samplers from letters, such as `edskypmxt`.
    ///
    /// # Errors
    /// An unknown letter, or too many.
    pub fn order_of_letters(letters: &str) -> Result<Vec<SamplerKind>, EngineError> {
        let kind = |letter: char| {
            NAMES.iter().find(|entry| entry.2 == letter).map(|entry| entry.0).ok_or_else(|| {
                let names = NAMES.map(|(_, name, letter, _)| format!("{letter} ({name})")).join(", ");
                EngineError::Options(format!("unknown sampler letter {letter:?}: expected {names}"))
            })
        };
        within(letters.chars().take(MAX_ORDER + 1).map(kind).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn within(order: Vec<SamplerKind>) -> Result<Vec<SamplerKind>, EngineError> {
    if order.len() > MAX_ORDER {
        return Err(EngineError::Options(format!(
            "the order has more than {MAX_ORDER} samplers: use each one once"
        )));
    }
    Ok(order)
}
