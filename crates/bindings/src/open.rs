//! Opening a model: a file, a folder, or the demo model that is built in.

use crate::error::{Error, ErrorKind};
use latent_formats::Checkpoint;
use std::path::Path;
use std::sync::Arc;

static DEMO: &[u8] = include_bytes!("../../../models/mla-demo-Q4_K_M.gguf");

/// Name of the built-in model in messages.
pub const DEMO_NAME: &str = "(built-in demo model)";

/// The beginning of a reference to a model of Hugging Face's hub.
const HUB: &str = "hf:";

/// Opens the model at `path`, or the built-in one.
///
/// # Errors
/// What the file lacks, or is instead of a model.
pub fn open(path: Option<&Path>) -> Result<Arc<Checkpoint>, Error> {
    let Some(path) = path else { return Ok(Arc::new(Checkpoint::from_static(DEMO_NAME, DEMO)?)) };
    let opened = Checkpoint::open(path).map_err(Error::from);
    opened.map(Arc::new).map_err(|error| match path.to_str() {
        Some(text) if error.kind == ErrorKind::NotFound && text.starts_with(HUB) => Error::new(
            ErrorKind::NotFound,
            format!("{text}: bring a model of the hub here with `latent pull {text}`, then give the path that it prints"),
        ),
        _ => error,
    })
}
