//! Short names of models: `NAME[:QUANT]`, such as `glm-4.7-flash`, from `short-names.json`.

use crate::error::HubError;
use crate::reference::{ModelRef, ModelSelector, checked_quant};
use crate::repo::Repo;
use serde::Deserialize;
use std::sync::LazyLock;

/// The registry; entries are ordered by size.
const REGISTRY: &str = include_str!("short-names.json");

/// Number of names that an error suggests.
const SUGGESTIONS: usize = 3;

/// Maximum number of characters of a text that are compared with names.
const MAX_COMPARED: usize = 64;

// High enough that common words (`moon`, `youth`) are similar to no name.
/// Minimum similarity of a misspelled name.
const LIKELY: f64 = 0.8;

/// A model with a short name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortName {
    /// The name, in lower case.
    pub name: String,
    /// The model's size, which users may write after the name: `youtu-llm:2b`.
    pub size: String,
    /// The repository, `OWNER/NAME`.
    #[serde(rename = "repository", deserialize_with = "repo")]
    pub repo: Repo,
    /// The default quant, if memory suffices.
    pub quant: String,
    /// Approximate size of that quant's files in bytes.
    pub bytes: u64,
    /// Approximate bytes of weights that a step of one token reads, if known.
    #[serde(default)]
    pub bytes_per_token: Option<u64>,
    /// The reason if the model is not supported.
    #[serde(default)]
    pub unsupported: Option<String>,
}

fn repo<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Repo, D::Error> {
    let text = String::deserialize(from)?;
    let (owner, name) =
        text.split_once('/').ok_or_else(|| serde::de::Error::custom("expected OWNER/NAME"))?;
    let repo = Repo { owner: owner.into(), name: name.into() };
    repo.check().map_err(serde::de::Error::custom)?;
    Ok(repo)
}

static NAMES: LazyLock<Result<Vec<ShortName>, String>> =
    LazyLock::new(|| serde_json::from_str(REGISTRY).map_err(|error| error.to_string()));

/// All models with short names, sorted by size.
pub fn short_names() -> &'static [ShortName] {
    // A test parses the registry, so an error cannot reach a user.
    NAMES.as_deref().unwrap_or_default()
}

/// The entry for `NAME[:QUANT]`, `NAME:SIZE` or `NAME:SIZE-QUANT` in any case, with the quant.
fn find(text: &str) -> Option<(&'static ShortName, Option<&str>)> {
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let entry = short_names().iter().find(|entry| entry.name.eq_ignore_ascii_case(name))?;
    let Some(rest) = rest else { return Some((entry, None)) };
    // Sizes have no hyphen (checked by a test), so `2b-Q4_0` splits at the first one.
    let (front, quant) = rest.split_once('-').map_or((rest, None), |(front, quant)| (front, Some(quant)));
    let quant = if front.eq_ignore_ascii_case(&entry.size) { quant } else { Some(rest) };
    Some((entry, quant))
}

/// The model of a short name, with or without a quant.
pub fn short_name(text: &str) -> Option<&'static ShortName> {
    find(text).map(|(entry, _)| entry)
}

/// Parses a reference, with or without the prefix `hf:`, or a short name. A short name without a
/// quant gives the default selection.
///
/// # Errors
/// [`HubError::Reference`], for an unknown short name with the nearest ones;
/// [`HubError::Unsupported`].
pub fn model_ref(text: &str) -> Result<ModelRef, HubError> {
    // Short names have no slash, and repositories always have one.
    if ModelRef::is_one(text) || text.contains('/') {
        return text.parse();
    }
    let wrong = |problem: String| HubError::Reference { text: text.into(), problem };
    let Some((entry, quant)) = find(text) else {
        let nearest = nearest(text).join(", ");
        let problem =
            format!("unknown short name; similar names: {nearest} (`latent ls --short-names` lists all)");
        return Err(wrong(problem));
    };
    if let Some(reason) = &entry.unsupported {
        return Err(HubError::Unsupported { name: text.into(), reason: reason.clone() });
    }
    let choice = match quant {
        None => ModelSelector::Usual,
        Some(quant) => ModelSelector::Quant(checked_quant(quant).map_err(|problem| wrong(problem.into()))?),
    };
    Ok(ModelRef { repo: entry.repo.clone(), revision: None, choice })
}

/// The short names most similar to a text. Names that begin with it come first.
fn nearest(text: &str) -> Vec<&'static str> {
    let text = text.to_ascii_lowercase();
    let mut all = compared(&text);
    all.sort_by(|a, b| {
        let begins = |name: &str| !text.is_empty() && name.starts_with(&text);
        begins(b.1).cmp(&begins(a.1)).then(b.0.total_cmp(&a.0))
    });
    all.into_iter().take(SUGGESTIONS).map(|(_, name)| name).collect()
}

/// The short name that a text is probably a misspelling of.
pub fn likely_short_name(text: &str) -> Option<&'static str> {
    let best = compared(text).into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity >= LIKELY).map(|(_, name)| name)
}

/// The name of every entry, and its similarity to a text (0 to 1) without case and quant.
fn compared(text: &str) -> Vec<(f64, &'static str)> {
    let name = text.split(':').next().unwrap_or_default();
    // The cost of the comparison is proportional to the length.
    let name = name.chars().take(MAX_COMPARED).collect::<String>().to_ascii_lowercase();
    let names = short_names().iter().map(|entry| &entry.name);
    names.map(|own| (strsim::normalized_damerau_levenshtein(&name, own), own.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_read_and_consistent() {
        let all = NAMES.as_ref().unwrap();
        for entry in all {
            let plain = |text: &str| {
                let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
                !text.is_empty() && text.chars().all(good) && !text.ends_with(".gguf")
            };
            assert!(plain(&entry.name) && plain(&entry.size) && !entry.size.contains('-'), "{entry:?}");
            assert!(entry.bytes > 100_000_000 && checked_quant(&entry.quant).is_ok(), "{entry:?}");
            assert!(entry.bytes_per_token.is_none_or(|read| read > 0 && read <= entry.bytes), "{entry:?}");
            assert_eq!(all.iter().filter(|other| other.name == entry.name).count(), 1, "{entry:?}");
        }
        assert!(all.is_sorted_by_key(|entry| entry.bytes));
    }

    #[test]
    fn names_stand_for_references() {
        for (text, reference) in [
            ("glm-4.7-flash", "hf:unsloth/GLM-4.7-Flash-GGUF"),
            ("GLM-4.7-Flash:q8_0", "hf:unsloth/GLM-4.7-Flash-GGUF:q8_0"),
            ("glm-4.7-flash:30b", "hf:unsloth/GLM-4.7-Flash-GGUF"),
            ("youtu-llm:2b", "hf:mradermacher/Youtu-LLM-2B-GGUF"),
            ("youtu-llm:2B-Q4_0", "hf:mradermacher/Youtu-LLM-2B-GGUF:Q4_0"),
            ("youtu-llm:Q4_0", "hf:mradermacher/Youtu-LLM-2B-GGUF:Q4_0"),
            ("deepseek-v2-lite", "hf:mradermacher/DeepSeek-V2-Lite-Chat-GGUF"),
            ("Kimi-Linear:Q4_K_M", "hf:ymcki/Kimi-Linear-48B-A3B-Instruct-GGUF:Q4_K_M"),
        ] {
            assert!(short_name(text).is_some());
            assert_eq!(model_ref(text).unwrap().to_string(), reference, "{text}");
        }
    }

    #[test]
    fn unknown_names_list_the_nearest() {
        for (text, nearest) in
            [("glm-4.7-flsh", "glm-4.7-flash"), ("deepseek-v2", "deepseek-v2-lite"), ("Youtu", "youtu-llm")]
        {
            let error = model_ref(text).unwrap_err().to_string();
            assert!(error.contains(&format!("similar names: {nearest},")), "{error}");
        }
        for text in ["youtu-llm:", "youtu-llm:2b-", "youtu-llm:a b", "hf:youtu-llm", ""] {
            assert!(model_ref(text).is_err(), "{text}");
        }
        assert_eq!(likely_short_name("glm-4.7-flsh"), Some("glm-4.7-flash"));
        assert_eq!(likely_short_name("deepseek-v2-lit:Q8_0"), Some("deepseek-v2-lite"));
        for word in ["Hello", "moon", "Hi", "glm", "youth", "deepseek"] {
            assert_eq!(likely_short_name(word), None, "{word}");
        }
        assert_eq!(likely_short_name(&"é".repeat(100_000)), None);
    }
}
