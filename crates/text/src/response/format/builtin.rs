//! Built-in response templates, and the selection of one for a model.

use super::compile::compile;
use super::shape::{FormatRules, FormatSource};
use super::spec::OwnFile;
use crate::response::error::ResponseFormatError;
use std::sync::OnceLock;

/// The files, in the order in which they are tried.
// More specific files come first. The strings of deepseek-v3.1 also occur in DeepSeek-R1's
// template, those of glm-4.5 in GLM-4.7's and Ling-3's, and hermes' `<tool_call>` in many.
const FILES: [&str; 15] = [
    include_str!("../../../response_templates/deepseek-v4.1.json"),
    include_str!("../../../response_templates/deepseek-v3.2.json"),
    include_str!("../../../response_templates/deepseek-v4.json"),
    include_str!("../../../response_templates/deepseek-r1.json"),
    include_str!("../../../response_templates/deepseek-v3.1.json"),
    include_str!("../../../response_templates/gigachat-3.5.json"),
    include_str!("../../../response_templates/gigachat-3.json"),
    include_str!("../../../response_templates/kimi-k3.json"),
    include_str!("../../../response_templates/kimi-k2.json"),
    include_str!("../../../response_templates/ling-3.json"),
    include_str!("../../../response_templates/glm-4.7.json"),
    include_str!("../../../response_templates/glm-4.5.json"),
    include_str!("../../../response_templates/mistral.json"),
    include_str!("../../../response_templates/hermes.json"),
    include_str!("../../../response_templates/generic.json"),
];

/// The file for unknown models.
const GENERIC: &str = "generic";

fn files() -> &'static [OwnFile] {
    static READ: OnceLock<Vec<OwnFile>> = OnceLock::new();
    // No file is dropped here: a test below parses all of them.
    READ.get_or_init(|| FILES.iter().filter_map(|file| serde_json::from_str(file).ok()).collect())
}

pub(super) fn names() -> Vec<&'static str> {
    files().iter().map(|file| file.name.as_str()).collect()
}

pub(super) fn named(name: &str, source: FormatSource) -> Result<FormatRules, ResponseFormatError> {
    let file = files()
        .iter()
        .find(|file| file.name == name)
        .ok_or_else(|| ResponseFormatError::Unknown { name: name.to_owned(), known: names().join(", ") })?;
    compile(&file.name, source, &file.response_template)
}

/// The built-in format for a model, by strings in its chat template or by its architecture.
pub(super) fn choose(
    chat_template: Option<&str>,
    architecture: Option<&str>,
) -> Result<FormatRules, ResponseFormatError> {
    let signed = |file: &&OwnFile| {
        let template = chat_template.unwrap_or_default();
        let occurs = |text: &String| template.contains(text.as_str());
        !file.chosen_by.all.is_empty()
            && file.chosen_by.all.iter().all(occurs)
            && !file.chosen_by.none.iter().any(occurs)
    };
    // The chat template decides before the architecture: DeepSeek-R1 and V3.1 have one architecture
    // and two formats.
    if let Some(file) = files().iter().find(signed) {
        return named(&file.name, FormatSource::ChatTemplate);
    }
    let architecture = architecture.unwrap_or_default();
    match files().iter().find(|file| file.chosen_by.architectures.iter().any(|name| name == architecture)) {
        Some(file) => named(&file.name, FormatSource::Architecture),
        None => named(GENERIC, FormatSource::Generic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_ours_can_be_read_and_compiled() {
        for file in FILES {
            let read: OwnFile = serde_json::from_str(file).unwrap_or_else(|e| panic!("{file}: {e}"));
            named(&read.name, FormatSource::Named).unwrap_or_else(|e| panic!("{}: {e}", read.name));
        }
        assert_eq!(files().last().unwrap().name, GENERIC);
    }
}
