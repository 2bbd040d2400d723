//! Adapters in GGUF files, in llama.cpp's form.

use super::file::{AdapterFile, hash_of, placed};
use crate::attached::AdapterNaming;
use crate::builder::{PlacedTensor, name_of};
use crate::checkpoint::display;
use crate::error::{AdapterError, FormatError};
use crate::gguf::{Header, MAGIC};
use crate::map::FileBytes;
use crate::tensor::TensorInfo;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn open(path: &Path) -> Result<AdapterFile, FormatError> {
    let refuse = |error| FormatError::adapter(path, error);
    let bytes = FileBytes::map(path)?;
    if !bytes.get().starts_with(MAGIC) {
        let text = "pass a GGUF file, or a folder with adapter_config.json and adapter_model.safetensors";
        return Err(refuse(AdapterError::NotAnAdapter(text.into())));
    }
    let parsed = Header::parse(bytes.get(), bytes.get().len() as u64);
    let mut header = parsed.map_err(|error| FormatError::Gguf { path: path.to_owned(), error })?;
    header.metadata.name_file(display(path));
    let metadata = &header.metadata;
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = metadata.str(key)?;
        if found != Some(expected) {
            let found = found.map_or("missing".to_owned(), |found| format!("{found:?}"));
            return Err(refuse(AdapterError::NotAnAdapter(format!(
                "{key} is {found}, expected {expected:?}"
            ))));
        }
    }
    let key = "adapter.lora.alpha";
    let alpha = metadata.f64(key)?.ok_or_else(|| refuse(missing(key)))?;
    if !alpha.is_finite() {
        let (key, found) = (key.to_owned(), alpha.to_string());
        return Err(refuse(AdapterError::Key { key, found, expected: "a finite number" }));
    }
    if metadata.get("adapter.alora.invocation_tokens").is_some() {
        let what = "activation at invocation tokens (aLoRA)".to_owned();
        return Err(refuse(AdapterError::Unsupported { what, advice: "use an adapter without it" }));
    }
    let architecture = metadata.str("general.architecture")?.map(str::to_owned);
    // Sorted, so that the order of pairs is the same in every process.
    let mut found: BTreeMap<String, (Option<TensorInfo>, Option<TensorInfo>)> = BTreeMap::new();
    for tensor in header.tensors {
        let info = placed(PlacedTensor::from(tensor));
        let (target, is_a) = if let Some(target) = info.name.strip_suffix(".lora_a") {
            (target.to_owned(), true)
        } else if let Some(target) = info.name.strip_suffix(".lora_b") {
            (target.to_owned(), false)
        } else {
            let advice = "its name must end in .lora_a or .lora_b; convert the adapter without changed norms \
                          and embeddings";
            return Err(refuse(AdapterError::Tensor { tensor: info.name, advice }));
        };
        // `Header::parse` has refused duplicate names, so no matrix is overwritten.
        let pair = found.entry(target).or_default();
        *(if is_a { &mut pair.0 } else { &mut pair.1 }) = Some(info);
    }
    // Like llama.cpp: with an alpha of 0, B · A is not scaled.
    let factor = |rank: usize| if alpha == 0.0 { 1.0 } else { alpha / rank as f64 };
    let pairs = found.into_iter().map(|(target, pair)| AdapterFile::pair(path, target, pair, factor));
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    if pairs.is_empty() {
        return Err(refuse(AdapterError::Empty));
    }
    Ok(AdapterFile {
        path: path.to_owned(),
        naming: AdapterNaming::Gguf,
        architecture,
        alpha,
        pairs,
        // A GGUF adapter has its settings in the same file.
        hash: hash_of(b"", bytes.get()),
        header: (name_of(path), header.data_start as usize),
        bytes: bytes.into(),
    })
}

fn missing(key: &str) -> AdapterError {
    AdapterError::Key { key: key.to_owned(), found: "missing".into(), expected: "a number" }
}
