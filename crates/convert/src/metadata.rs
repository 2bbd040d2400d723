//! Metadata of a new GGUF file: hyper-parameters, sampling settings, tokenizer and templates.

use crate::tensors::NewTensor;
use latent_formats::HfSource;
use latent_formats::gguf::{Writer, WriterValue};
use latent_graph::config::KeyList;
use latent_text::GgufTokenizer;
use serde_json::Value;

/// Settings of generation_config.json, the corresponding GGUF keys, and whether each is an integer.
pub(crate) const SAMPLING: [(&str, &str, bool); 11] = [
    ("top_k", "general.sampling.top_k", true),
    ("top_p", "general.sampling.top_p", false),
    ("min_p", "general.sampling.min_p", false),
    ("xtc_probability", "general.sampling.xtc_probability", false),
    ("xtc_threshold", "general.sampling.xtc_threshold", false),
    ("temperature", "general.sampling.temp", false),
    ("penalty_last_n", "general.sampling.penalty_last_n", true),
    ("repetition_penalty", "general.sampling.penalty_repeat", false),
    ("mirostat", "general.sampling.mirostat", true),
    ("mirostat_tau", "general.sampling.mirostat_tau", false),
    ("mirostat_eta", "general.sampling.mirostat_eta", false),
];

fn text(text: &str) -> WriterValue {
    WriterValue::String(text.to_owned())
}

/// Writes the kind of file and the hyper-parameters.
pub(crate) fn model(writer: &mut Writer, keys: &KeyList) {
    for (key, value) in keys.written() {
        writer.key(key, value);
    }
    writer.key("general.type", text("model"));
    // Placeholders in the usual order of keys. Assignment sets both when types are chosen.
    writer.key("general.file_type", WriterValue::U32(0));
    writer.key("general.quantization_version", WriterValue::U32(0));
}

/// Writes the settings that generation_config.json recommends.
pub(crate) fn sampling(writer: &mut Writer, source: &HfSource) {
    let Some(config) = &source.generation_config else { return };
    for (setting, key, integer) in SAMPLING {
        let Some(value) = config.get(setting).and_then(Value::as_f64) else { continue };
        let value = if integer { WriterValue::I32(value as i32) } else { WriterValue::F32(value as f32) };
        writer.key(key, value);
    }
}

/// Writes the tokenizer's keys, or that the model has no tokenizer.
pub(crate) fn tokenizer(writer: &mut Writer, tokenizer: Option<&GgufTokenizer>) {
    let Some(tokenizer) = tokenizer else {
        // llama.cpp requires the key; "none" is its name for a model without a tokenizer.
        writer.key("tokenizer.ggml.model", text("none"));
        return;
    };
    let strings =
        |texts: &[String]| WriterValue::Strings(texts.iter().map(|text| text.as_bytes().to_vec()).collect());
    writer.key("tokenizer.ggml.model", text(tokenizer.model));
    writer.key("tokenizer.ggml.pre", text(&tokenizer.pre));
    writer.key("tokenizer.ggml.tokens", strings(&tokenizer.tokens));
    if let Some(scores) = &tokenizer.scores {
        writer.key("tokenizer.ggml.scores", WriterValue::F32s(scores.clone()));
    }
    writer.key("tokenizer.ggml.token_type", WriterValue::I32s(tokenizer.token_types.clone()));
    if let Some(merges) = &tokenizer.merges {
        writer.key("tokenizer.ggml.merges", strings(merges));
    }
    for (key, id) in &tokenizer.ids {
        writer.key(format!("tokenizer.ggml.{key}"), WriterValue::U32(*id));
    }
    for (key, flag) in &tokenizer.flags {
        writer.key(format!("tokenizer.ggml.{key}"), WriterValue::Bool(*flag));
    }
}

/// Writes the default chat template and the named ones (`tool_use`, `rag`).
pub(crate) fn templates(writer: &mut Writer, source: &HfSource) {
    if let Some(template) = &source.chat_template {
        writer.key("tokenizer.chat_template", text(template));
    }
    let list = source.tokenizer_config.as_ref().and_then(|config| config.get("chat_template")?.as_array());
    let mut names = Vec::new();
    for template in list.into_iter().flatten() {
        let part = |key: &str| template.get(key).and_then(Value::as_str);
        // "default" is `source.chat_template`, written above.
        if let (Some(name), Some(source)) = (part("name").filter(|name| *name != "default"), part("template"))
        {
            writer.key(format!("tokenizer.chat_template.{name}"), text(source));
            names.push(name.as_bytes().to_vec());
        }
    }
    if !names.is_empty() {
        writer.key("tokenizer.chat_templates", WriterValue::Strings(names));
    }
}

/// `general.size_label`, as the Python package gguf computes it: `671B`, or `256x20B` for a model
/// with experts (their number, and the parameters of one expert plus all shared ones).
pub(crate) fn size_label(tensors: &[NewTensor]) -> String {
    let (mut shared, mut expert) = (0u64, 0u64);
    let mut experts = Vec::new();
    for tensor in tensors {
        let elements = tensor.elements();
        if tensor.name.contains("_exps.") && tensor.shape.len() == 3 {
            expert += elements / (tensor.shape[0] as u64).max(1);
            experts.push(tensor.shape[0]);
        } else {
            shared += elements;
        }
    }
    match experts.as_slice() {
        [] => rounded(shared),
        // The mean over all expert tensors: layers may have different numbers of experts.
        experts => format!("{}x{}", experts.iter().sum::<usize>() / experts.len(), rounded(shared + expert)),
    }
}

/// A count with at least two digits: `7.4B`, `236B`.
fn rounded(parameters: u64) -> String {
    let count = parameters as f64;
    let (value, unit) = match count {
        count if count > 1e12 => (count * 1e-12, "T"),
        count if count > 1e9 => (count * 1e-9, "B"),
        count if count > 1e6 => (count * 1e-6, "M"),
        count => (count * 1e-3, "K"),
    };
    let whole = format!("{value:.0}");
    // A leading 0 does not count: 0.30 has two digits.
    let digits = 2usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_with_two_digits() {
        let labels =
            [298_000, 4_800_000, 15_706_484_224, 671_026_419_200, 1_026_408_232_448, 1_400].map(rounded);
        assert_eq!(labels, ["298K", "4.8M", "16B", "671B", "1.0T", "1.4K"]);
    }
}
