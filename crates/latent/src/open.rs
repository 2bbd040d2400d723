//! Opening models: files, folders, bytes in memory, and the demo model.

use crate::error::{Error, ErrorKind};
use latent_formats::{AdapterFile, Checkpoint};
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "demo")]
static DEMO: &[u8] = include_bytes!("../../../models/mla-demo-Q4_K_M.gguf");

/// Name of the built-in model in messages.
#[cfg(feature = "demo")]
const DEMO_NAME: &str = "(built-in demo model)";

/// The prefix of references to models of the Hugging Face Hub.
const HUB: &str = "hf:";

/// Opens the file of a model without loading its weights. [`Model::opened`](crate::Model::opened)
/// loads it.
///
/// # Errors
/// If the file cannot be read, or is not a model.
pub fn open(path: impl AsRef<Path>) -> Result<Arc<Checkpoint>, Error> {
    let path = path.as_ref();
    // This opens files only. With the feature `hub`, `Model::builder` downloads such references
    // before. A local file may have such a name, so the hint is given only after opening has
    // failed.
    let opened = Checkpoint::open(path).map_err(Error::from);
    opened.map(Arc::new).map_err(|error| match path.to_str() {
        Some(text) if *error.kind() == ErrorKind::NotFound && text.starts_with(HUB) => Error::new(
            ErrorKind::NotFound,
            format!(
                "{text}: download the model with `latent pull {text}`, then pass the path that it prints"
            ),
        ),
        _ => error,
    })
}

/// Opens a model with LoRA adapters and their scales: GGUF files of llama.cpp, or PEFT folders.
/// [`Model::opened`](crate::Model::opened) loads it.
///
/// # Errors
/// As for [`open`]. Also if an adapter is malformed, not supported, or of another architecture.
pub fn open_with_adapters<P: AsRef<Path>>(
    path: impl AsRef<Path>,
    adapters: &[(P, f32)],
) -> Result<Arc<Checkpoint>, Error> {
    with_adapters(open(path)?, adapters)
}

/// Adds LoRA adapters and their scales to an open model.
pub(crate) fn with_adapters<P: AsRef<Path>>(
    base: Arc<Checkpoint>,
    adapters: &[(P, f32)],
) -> Result<Arc<Checkpoint>, Error> {
    if adapters.is_empty() {
        return Ok(base);
    }
    // Adapters become part of the checkpoint, so it must not be shared with another model.
    let base = Arc::into_inner(base)
        .ok_or_else(|| Error::argument("the model is in use: open it again to load adapters"))?;
    let adapters = adapters.iter().map(|(path, scale)| Ok((AdapterFile::open(path.as_ref())?, *scale)));
    let adapters = adapters.collect::<Result<Vec<_>, Error>>()?;
    Ok(Arc::new(base.with_adapters(adapters)?))
}

/// Opens the demo model, which is built in with the feature `demo`.
///
/// # Errors
/// Never: the model is valid.
#[cfg(feature = "demo")]
pub fn open_demo() -> Result<Arc<Checkpoint>, Error> {
    Ok(Arc::new(Checkpoint::from_static(DEMO_NAME, DEMO)?))
}
