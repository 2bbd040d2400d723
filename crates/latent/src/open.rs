//! Opening a model: a file, a folder, bytes in memory, or the demo model.

use crate::error::{Error, ErrorKind};
use latent_formats::{AdapterFile, Checkpoint};
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "demo")]
static DEMO: &[u8] = include_bytes!("../../../models/mla-demo-Q4_K_M.gguf");

/// Name of the built-in model in messages.
#[cfg(feature = "demo")]
const DEMO_NAME: &str = "(built-in demo model)";

/// The beginning of a reference to a model of Hugging Face's hub.
const HUB: &str = "hf:";

/// Opens the file of a model, without loading its weights: its metadata and tensors. [`Model::opened`](crate::Model::opened) loads it.
///
/// # Errors
/// What the file lacks, or is instead of a model.
pub fn open(path: impl AsRef<Path>) -> Result<Arc<Checkpoint>, Error> {
    let path = path.as_ref();
    let opened = Checkpoint::open(path).map_err(Error::from);
    opened.map(Arc::new).map_err(|error| match path.to_str() {
        Some(text) if *error.kind() == ErrorKind::NotFound && text.starts_with(HUB) => Error::new(
            ErrorKind::NotFound,
            format!("{text}: bring a model of the hub here with `latent pull {text}`, then give the path that it prints"),
        ),
        _ => error,
    })
}

/// Opens a model with LoRA adapters, each with its scale: GGUF files of llama.cpp, or folders of PEFT.
/// [`Model::opened`](crate::Model::opened) loads it.
///
/// # Errors
/// As for [`open`]; an adapter that is malformed, of a kind that is not supported, or of another architecture.
pub fn open_with_adapters<P: AsRef<Path>>(
    path: impl AsRef<Path>,
    adapters: &[(P, f32)],
) -> Result<Arc<Checkpoint>, Error> {
    with_adapters(open(path)?, adapters)
}

/// An open model with LoRA adapters, each with its scale.
pub(crate) fn with_adapters<P: AsRef<Path>>(
    base: Arc<Checkpoint>,
    adapters: &[(P, f32)],
) -> Result<Arc<Checkpoint>, Error> {
    if adapters.is_empty() {
        return Ok(base);
    }
    let base = Arc::into_inner(base)
        .ok_or_else(|| Error::argument("the model is in use: open it once more for adapters"))?;
    let adapters = adapters.iter().map(|(path, scale)| Ok((AdapterFile::open(path.as_ref())?, *scale)));
    let adapters = adapters.collect::<Result<Vec<_>, Error>>()?;
    Ok(Arc::new(base.with_adapters(adapters)?))
}

/// Opens the demo model, which is built in with the feature `demo`.
///
/// # Errors
/// None: the model is valid.
#[cfg(feature = "demo")]
pub fn open_demo() -> Result<Arc<Checkpoint>, Error> {
    Ok(Arc::new(Checkpoint::from_static(DEMO_NAME, DEMO)?))
}
