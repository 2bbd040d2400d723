//! References to models: `hf:OWNER/NAME[@REVISION][:QUANT]`.

use crate::error::HubError;
use crate::repo::Repo;
use std::fmt;
use std::str::FromStr;

/// The prefix of a reference.
pub const PREFIX: &str = "hf:";

/// Alternative prefixes: the addresses of a repository's page.
const ADDRESSES: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// A reference without its prefix.
fn without_prefix(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix(PREFIX) {
        return Some(rest.strip_prefix("//").unwrap_or(rest));
    }
    let address = text.strip_prefix("https://").unwrap_or(text);
    ADDRESSES.iter().find_map(|prefix| address.strip_prefix(prefix))
}

/// A user's reference to a model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRef {
    /// The repository.
    pub repo: Repo,
    /// Branch, tag or commit; by default `main`.
    pub revision: Option<String>,
    /// The selected model of the repository.
    pub choice: ModelSelector,
}

/// A selection among a repository's models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSelector {
    /// The default: the first of [`DEFAULT_QUANTS`](crate::DEFAULT_QUANTS), or the only model.
    Usual,
    /// The GGUF file or set of shards with this quant; `safetensors` is the folder.
    Quant(String),
    /// This file, or its set of shards.
    File(String),
}

impl ModelRef {
    /// Whether a model's path is a reference to the hub. A file with such a name can be given as
    /// `./hf:…`.
    pub fn is_one(text: &str) -> bool {
        without_prefix(text).is_some()
    }

    /// The revision to request.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl FromStr for ModelRef {
    type Err = HubError;

    /// Parses a reference, with or without the prefix `hf:` (or `hf://`, `hf.co/`,
    /// `https://huggingface.co/`).
    fn from_str(text: &str) -> Result<ModelRef, HubError> {
        let wrong = |problem: &str| HubError::Reference { text: text.into(), problem: problem.into() };
        let rest = without_prefix(text).unwrap_or(text);
        let (owner, rest) = rest.split_once('/').ok_or_else(|| wrong("it has no OWNER/NAME"))?;
        // A name cannot contain these characters.
        let end = rest.find(['@', ':', '/']).unwrap_or(rest.len());
        let (name, mut rest) = rest.split_at(end);
        let repo = Repo { owner: owner.into(), name: name.into() };
        repo.check().map_err(wrong)?;
        let mut revision = None;
        if let Some(after) = rest.strip_prefix('@') {
            let end = revision_end(after);
            revision = Some(checked_revision(&after[..end]).map_err(wrong)?);
            rest = &after[end..];
        }
        let choice = match rest.split_at_checked(1) {
            None => ModelSelector::Usual,
            Some((":", quant)) => ModelSelector::Quant(checked_quant(quant).map_err(wrong)?),
            // The path is checked by `paths::below` before anything is written. A safetensors file
            // alone is not a model.
            Some((_, file)) if file.to_ascii_lowercase().ends_with(".gguf") => {
                ModelSelector::File(file.into())
            }
            Some(_) => return Err(wrong("a file must end with .gguf")),
        };
        Ok(ModelRef { repo, revision, choice })
    }
}

/// The end of a revision: a slash or colon. `refs/pr/1` contains two slashes itself.
fn revision_end(text: &str) -> usize {
    // Pull requests and converted branches of the hub have refs with exactly two slashes.
    let slashes = if text.starts_with("refs/") { 2 } else { 0 };
    let stop = |c: char| c == '/' || c == ':';
    let mut ends = text.match_indices(stop).map(|(at, found)| (at, found == ":"));
    let mut seen = 0;
    let end = ends.find(|&(_, colon)| {
        seen += 1;
        colon || seen > slashes
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// A checked revision, with `%2F` decoded to a slash.
fn checked_revision(text: &str) -> Result<String, &'static str> {
    let revision = text.replace("%2F", "/").replace("%2f", "/");
    // The revision becomes part of an address and, in Hugging Face's cache, of a path.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
    if revision.is_empty() || revision.len() > 255 || !revision.chars().all(plain) || revision.contains("..")
    {
        return Err("a revision can contain letters, digits and . _ - + (a slash as %2F)");
    }
    Ok(revision)
}

pub(crate) fn checked_quant(text: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 96 || !text.chars().all(plain) {
        return Err("a quant can contain letters, digits and . _ -, such as Q4_K_M");
    }
    Ok(text.into())
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.repo)?;
        if let Some(revision) = &self.revision {
            let plain = revision.starts_with("refs/");
            write!(f, "@{}", if plain { revision.clone() } else { revision.replace('/', "%2F") })?;
        }
        match &self.choice {
            ModelSelector::Usual => Ok(()),
            ModelSelector::Quant(quant) => write!(f, ":{quant}"),
            ModelSelector::File(file) => write!(f, "/{file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ModelRef {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_form_is_read_and_written_again() {
        for text in [
            "hf:deepseek-ai/DeepSeek-V2-Lite",
            "hf:bartowski/DeepSeek-V2-Lite-GGUF:Q4_K_M",
            "hf:unsloth/GLM-4.7-Flash-GGUF:UD-Q4_K_XL",
            "hf:o/n@v1.0",
            "hf:o/n@v1.0:q4_0",
            "hf:o/n@refs/pr/12:q4_0",
            "hf:o/n@refs/pr/12",
            "hf:o/n@feature%2Fx:safetensors",
            "hf:o/n/model.gguf",
            "hf:o/n@refs/pr/3/sub/model-00001-of-00002.GGUF",
            "hf:o/n@0123456789012345678901234567890123456789/a/b.gguf",
        ] {
            assert_eq!(read(text).to_string(), text);
            assert_eq!(read(text.trim_start_matches("hf:")), read(text));
        }
        let model = read("hf://o/n@feature%2Fx/a/b.gguf");
        assert_eq!(model.revision(), "feature/x");
        assert_eq!(model.choice, ModelSelector::File("a/b.gguf".into()));
        assert_eq!(read("hf:o/n").revision(), "main");
        for text in ["hf.co/o/n:Q8_0", "huggingface.co/o/n:Q8_0", "https://hf.co/o/n:Q8_0"] {
            assert!(ModelRef::is_one(text), "{text}");
            assert_eq!(read(text), read("hf:o/n:Q8_0"), "{text}");
        }
        assert!(!ModelRef::is_one("hf.community/o/n") && !ModelRef::is_one("./hf.co/o/n"));
    }

    #[test]
    fn invalid_references_are_rejected() {
        for text in [
            "hf:",
            "hf:model",
            "hf:/n",
            "hf:o/",
            "hf:../n",
            "hf:o/..",
            "hf:o/n:",
            "hf:o/n@",
            "hf:o/n@a..b",
            "hf:o/n:../x",
            "hf:o/n/",
            "hf:o/n/config.json",
            "hf:o/.n",
            "hf:o/n.",
            "hf:o\\p/n",
            "hf:o/n?x",
            "hf:o/n:a b",
            "hf:ö/n",
        ] {
            let error = text.parse::<ModelRef>().unwrap_err();
            assert!(error.to_string().contains("hf:OWNER/NAME"), "{text}: {error}");
        }
    }
}
