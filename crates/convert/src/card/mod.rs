//! General metadata of a model (`general.*`): from the front matter of its card, completed from its
//! id.

mod front_matter;
mod id;

use crate::error::ConvertError;
use front_matter::FrontMatter;
use id::{IdParts, title};
use latent_formats::gguf::{Metadata, Writer, WriterValue};
use latent_formats::input_file;
use serde_json::json;
use std::path::Path;

/// The file of a model folder that holds the card.
pub(crate) const CARD: &str = "README.md";

/// Maximum size of a card in bytes. Published cards have some kilobytes.
const MAX_BYTES: u64 = 4 << 20;

/// Prefix of a model's address.
const HUB: &str = "https://huggingface.co/";

/// GGUF keys with a text value, and the corresponding keys of cards in order of precedence.
const TEXTS: [(&str, &[&str]); 14] = [
    ("name", &["name", "model_name"]),
    ("author", &["author", "model_author", "model_creator"]),
    ("version", &["version", "model_version"]),
    ("organization", &["organization", "model_organization"]),
    ("finetune", &["finetune", "model_finetune"]),
    ("basename", &["basename", "model_basename", "model_type"]),
    ("description", &["description", "model_description"]),
    ("size_label", &["size_label", "model_size_label"]),
    ("license.name", &["license_name"]),
    ("license.link", &["license_link"]),
    ("source.url", &["url", "model_url"]),
    ("source.doi", &["doi", "model_doi"]),
    ("source.uuid", &["uuid", "model_uuid"]),
    ("source.repo_url", &["repo_url", "model_repo_url"]),
];

/// GGUF keys with a list value, and the keys of cards whose lists are concatenated.
const LISTS: [(&str, [&str; 2]); 2] =
    [("tags", ["tags", "pipeline_tag"]), ("languages", ["languages", "language"])];

/// Base models and data sets: the prefix of the GGUF keys, and the possible keys of cards.
const SOURCES: [(&str, [&str; 3]); 2] = [
    ("base_model", ["base_model", "base_models", "base_model_sources"]),
    ("dataset", ["datasets", "dataset", "dataset_sources"]),
];

/// Values of `general.*` keys, by key without the prefix.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct GeneralMetadata {
    texts: Vec<(String, String)>,
    lists: Vec<(&'static str, Vec<String>)>,
    counts: Vec<(String, usize)>,
}

/// The text of the card in a model folder; `None` without a card. The caller reports an unreadable
/// card to the user and converts the model without it.
pub(crate) fn read(folder: &Path) -> Result<Option<String>, String> {
    let path = folder.join(CARD);
    if !path.exists() {
        return Ok(None);
    }
    input_file::read_text(&path, MAX_BYTES)
        .map(Some)
        .map_err(|error| format!("the model card is omitted: {error}"))
}

/// The id of the model in a folder: the folder's name, or the repository's name if the folder is a
/// snapshot in Hugging Face's cache.
pub(crate) fn id_of(folder: &Path) -> String {
    // A path such as `.` and a symbolic link do not have the name of the folder itself.
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name =
        |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut above = folder.ancestors().skip(1);
    match (above.next().map(name).as_deref(), above.next().map(name)) {
        // models--OWNER--NAME/snapshots/<commit>.
        (Some("snapshots"), Some(repository)) if repository.starts_with("models--") => {
            repository["models--".len()..].replacen("--", "/", 1)
        }
        _ => name(&folder),
    }
}

impl GeneralMetadata {
    /// Metadata of a model with this number of parameters: from its card, completed from `ids`.
    /// Earlier ids take precedence.
    pub(crate) fn new(card: &str, ids: &[&str], parameters: u64) -> GeneralMetadata {
        let front = FrontMatter::of(card);
        let mut about = GeneralMetadata::default();
        for (key, names) in TEXTS {
            if let Some(text) = names.iter().find_map(|name| front.text(name)) {
                about.add(key, text);
            }
        }
        // A card may list several licenses, but the GGUF key holds one text.
        let license = front.list("license").join(",");
        if !license.is_empty() {
            about.add("license", license);
        }
        for (key, names) in SOURCES {
            // Only the first key that exists counts: they are spellings of the same list.
            let Some(name) = names.into_iter().find(|name| front.get(name).is_some()) else { continue };
            let sources = front.list(name);
            about.counts.push((format!("{key}.count"), sources.len()));
            for (i, source) in sources.iter().enumerate() {
                about.source(&format!("{key}.{i}"), source, parameters);
            }
        }
        for (key, names) in LISTS {
            let list: Vec<String> = names.iter().flat_map(|name| front.list(name)).collect();
            if !list.is_empty() {
                about.lists.push((key, list));
            }
        }
        for parts in ids.iter().filter_map(|id| IdParts::of(id, parameters)) {
            about.add("name", title(&parts.name));
            let guessed = [
                ("organization", parts.organization.as_deref().map(title)),
                ("basename", parts.basename),
                ("finetune", parts.finetune),
                ("version", parts.version),
                ("size_label", parts.size_label),
            ];
            for (key, text) in guessed {
                text.into_iter().for_each(|text| about.add(key, text));
            }
        }
        about
    }

    /// Adds a text unless the key already has one.
    fn add(&mut self, key: &str, text: String) {
        if self.text(key).is_none() {
            self.texts.push((key.to_owned(), text));
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.texts.iter().find(|(name, _)| name == key).map(|(_, text)| text.as_str())
    }

    /// Adds a base model or data set, given by id or address.
    fn source(&mut self, prefix: &str, source: &str, parameters: u64) {
        let address = source.contains("://");
        let id = if address {
            // Addresses of data sets have one part more (`datasets/OWNER/NAME`), and contain no id
            // of a model.
            source.strip_prefix(HUB).filter(|id| id.split('/').count() == 2)
        } else {
            Some(source)
        };
        if let Some(parts) = id.and_then(|id| IdParts::of(id, parameters)) {
            self.add(&format!("{prefix}.name"), title(&parts.name));
            parts.version.into_iter().for_each(|version| self.add(&format!("{prefix}.version"), version));
            if let Some(owner) = parts.organization {
                self.add(&format!("{prefix}.organization"), title(&owner));
                self.add(&format!("{prefix}.repo_url"), format!("{HUB}{owner}/{}", parts.name));
            }
        }
        if address {
            // No effect if the id has given an address already.
            self.add(&format!("{prefix}.repo_url"), source.to_owned());
        }
    }

    /// Writes the keys. `size_label` computes the size if neither card nor id states one.
    pub(crate) fn write(mut self, writer: &mut Writer, size_label: impl FnOnce() -> String) {
        if self.text("size_label").is_none() {
            self.add("size_label", size_label());
        }
        for (key, text) in self.texts {
            writer.key(format!("general.{key}"), WriterValue::String(text));
        }
        for (key, count) in self.counts {
            writer.key(format!("general.{key}"), WriterValue::U32(count as u32));
        }
        for (key, list) in self.lists {
            let list = list.into_iter().map(String::into_bytes).collect();
            writer.key(format!("general.{key}"), WriterValue::Strings(list));
        }
    }
}

/// Keys that can be derived from an id.
const TOLD_BY_IDS: [&str; 6] = ["name", "organization", "basename", "finetune", "version", "size_label"];

/// The card of a GGUF file's metadata. `None` if the file has only keys that can be derived from an
/// id.
pub(crate) fn of_metadata(metadata: &Metadata) -> Result<Option<String>, ConvertError> {
    let text = |key: &str| metadata.str(&format!("general.{key}"));
    let list = |key: &str| -> Result<Vec<String>, ConvertError> {
        let texts = metadata.strings(&format!("general.{key}"))?.unwrap_or_default();
        Ok(texts.into_iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    };
    let mut lines = Vec::new();
    let mut worth = false;
    for (key, names) in TEXTS.into_iter().chain([("license", &["license"][..])]) {
        if let Some(text) = text(key)? {
            worth |= !TOLD_BY_IDS.contains(&key);
            // A JSON string is also a YAML string, with all special characters escaped.
            lines.push(format!("{}: {}", names[0], json!(text)));
        }
    }
    for (key, names) in SOURCES {
        let mut sources = Vec::new();
        for i in 0..metadata.u64(&format!("general.{key}.count"))?.unwrap_or(0).min(MAX_SOURCES) {
            let (address, name) = (text(&format!("{key}.{i}.repo_url"))?, text(&format!("{key}.{i}.name"))?);
            sources.extend(
                address
                    .map(|address| address.strip_prefix(HUB).unwrap_or(address))
                    .or(name)
                    .map(str::to_owned),
            );
        }
        add_list(&mut lines, names[0], &sources);
    }
    for (key, names) in LISTS {
        add_list(&mut lines, names[0], &list(key)?);
    }
    // No list can be derived from an id.
    worth |= lines.iter().any(|line| line.starts_with("- "));
    Ok(worth.then(|| format!("---\n{}\n---\n", lines.join("\n"))))
}

/// Maximum number of listed base models and data sets. A hostile file may claim any count.
const MAX_SOURCES: u64 = 1000;

fn add_list(lines: &mut Vec<String>, name: &str, texts: &[String]) {
    if !texts.is_empty() {
        lines.push(format!("{name}:"));
        lines.extend(texts.iter().map(|text| format!("- {}", json!(text))));
    }
}
