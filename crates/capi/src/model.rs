//! Loading and describing a model.

use crate::border::{self, guarded, null};
use crate::buffers::latent_string;
use crate::error::{latent_error, latent_status};
use crate::load_options::latent_load_options;
use crate::sized;
use latent::{Error, ErrorKind, Model, ModelBuilder};
use std::ffi::c_char;
use std::path::Path;

/// A loaded model. Create it with latent_model_load and release it with latent_model_free.
///
/// All functions that take a model may be called from several threads at the same time. Concurrent
/// generations are batched.
pub struct latent_model(pub(crate) Model);

/// Loads a model.
///
/// - `path`: a GGUF file, any shard of a split GGUF file, a directory with safetensors files, or a
///   packed file, as NUL-terminated UTF-8. NULL loads the built-in demo model. Nothing is
///   downloaded.
/// - `options`: NULL for the defaults.
/// - `model`: receives the model, or NULL if the call fails. The caller owns it and must release it
///   with latent_model_free.
///
/// The weights are mapped from the file, which must not be truncated while the model is in use.
///
/// Returns LATENT_NOT_FOUND, LATENT_BAD_FILE, LATENT_UNSUPPORTED, or LATENT_OUT_OF_MEMORY if the
/// model cannot be loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_load(
    path: *const c_char,
    options: *const latent_load_options,
    model: *mut *mut latent_model,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(model, "model", || {
                let path = border::word(path, "path")?.map(Path::new);
                let options = sized::read(options, latent_load_options::default())?.unwrap_or_default();
                // Not `Model::builder(path)`, which would treat the path as a name to download if
                // another crate in the build enables the feature `hub`.
                let builder = match path {
                    Some(path) => Model::opened(latent::open(path)?),
                    None => Model::demo(),
                };
                let add = |builder: ModelBuilder, (path, scale)| builder.adapter(path, scale);
                let builder = options.adapters()?.into_iter().fold(builder, add);
                let loaded = builder.options(options.read()?).load()?;
                Ok(latent_model(loaded))
            })
        })
    }
}

/// Releases a model, and waits until its threads have ended and its memory is free. Does nothing if
/// `model` is NULL.
///
/// No other thread may use `model` during or after the call. If a callback calls this function for
/// the model of its own generation, the memory is released when that generation ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_free(model: *mut latent_model) {
    // SAFETY: it came from latent_model_load, and the caller frees it once
    unsafe { border::free(model) }
}

/// Describes a model and its configuration as a JSON object with the keys `name`, `file`,
/// `architecture`, `parameters`, `context`, `vocab_size`, `threads`, `warnings`, and others.
///
/// `json` receives the text. The caller must release it with latent_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_describe(
    model: *const latent_model,
    json: *mut latent_string,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = border::given(model, "model")?;
            if json.is_null() {
                return Err(null("json"));
            }
            let text = serde_json::to_string(model.0.description())
                .map_err(|error| Error::new(ErrorKind::Engine, error.to_string()))?;
            json.write(latent_string::new(text));
            Ok(())
        })
    }
}

/// Returns the vocabulary size, which is the number of logits per token. Returns 0 if `model` is
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_vocab_size(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().vocab_size)
}

/// Returns the maximum length of a sequence in tokens. Returns 0 if `model` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_context(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().context)
}

/// Returns the number of elements of an embedding. Returns 0 if `model` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_hidden_size(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().hidden_size)
}
