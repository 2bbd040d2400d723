//! References to models of the hub in place of paths.

use crate::error::HubError;
use crate::local::{LocalModel, find};
use crate::pull::{PullEvent, pull_with};
use crate::reference::ModelRef;
use crate::select::QuantPolicy;
use crate::settings::HubSettings;
use crate::short_names::{model_ref, short_name};
use std::ffi::OsStr;
use std::path::Path;

/// A tenth of the available memory is reserved for the KV cache and the values of a step.
const RESERVED: u64 = 10;

/// Parses a path that is a reference: `hf:…`, `hf.co/…`, or a short name. `None` for other paths.
///
/// # Errors
/// [`HubError::Reference`] and [`HubError::Unsupported`].
pub fn path_reference(path: &Path) -> Result<Option<ModelRef>, HubError> {
    let text = path.to_str().filter(|text| ModelRef::is_one(text) || path_short_name(path).is_some());
    text.map(model_ref).transpose()
}

/// The short name in a path. An existing file or folder of that name has priority.
pub fn path_short_name(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| short_name(text).is_some() && !path.exists())
}

/// The error for a path that is neither a file nor a model of the hub, if it may be a misspelled
/// short name.
pub fn misspelled_name(path: &Path) -> Option<String> {
    let text =
        path.to_str().filter(|text| !text.is_empty() && !text.contains(['/', '\\']) && !path.exists())?;
    // A name with the extension of a model file is a missing file, not a misspelled model.
    match model_ref(text) {
        Err(HubError::Reference { problem, .. })
            if path.extension().is_none_or(|end| !is_file_ending(end)) =>
        {
            Some(format!("{text}: file not found, and {problem}"))
        }
        _ => None,
    }
}

fn is_file_ending(end: &OsStr) -> bool {
    ["gguf", "safetensors", "latent", "json"].iter().any(|known| end.eq_ignore_ascii_case(known))
}

impl QuantPolicy {
    /// The policy for a short name without a quant: its default quant, or a smaller one that fits
    /// into `available` bytes of memory.
    pub fn of_short_name(name: Option<&str>, available: Option<u64>) -> QuantPolicy {
        let entry = name.and_then(short_name);
        let max_bytes = entry.and(available).map(|bytes| bytes - bytes / RESERVED);
        QuantPolicy { preferred: entry.map(|entry| entry.quant.clone()), max_bytes }
    }
}

/// Finds a model on this machine, or [downloads](pull_with) it.
///
/// # Errors
/// Like [`pull_with`].
pub fn find_or_pull(
    settings: &HubSettings,
    model: &ModelRef,
    policy: &QuantPolicy,
    report: &mut dyn FnMut(PullEvent) -> bool,
) -> Result<LocalModel, HubError> {
    match find(settings, model)? {
        Some(local) => Ok(local),
        None => Ok(pull_with(settings, model, policy, report)?.model),
    }
}
