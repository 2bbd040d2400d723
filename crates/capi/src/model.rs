//! Loading a model.

use crate::border::{self, guarded, null};
use crate::buffers::latent_string;
use crate::error::{latent_error, latent_status};
use crate::load_options::latent_load_options;
use crate::sized;
use latent::{Error, ErrorKind, Model, ModelBuilder};
use std::ffi::c_char;
use std::path::Path;

/// A loaded model. Any threads may use it at the same time: their answers share its steps.
pub struct latent_model(pub(crate) Model);

/// Loads the model at `path`: a GGUF file, any of its shards, a folder of safetensors, or a packed
/// file; NULL: the demo model that is built in. `options` may be NULL. The model is the caller's,
/// who gives it back with latent_model_free.
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

/// Gives a model back, once no other thread uses it; waits until its memory is free. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_free(model: *mut latent_model) {
    // SAFETY: it came from latent_model_load, and the caller frees it once
    unsafe { border::free(model) }
}

/// What was loaded, and how it runs: a JSON object with name, file, architecture, parameters,
/// context, vocab_size, threads, warnings and more.
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

/// Logits per token; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_vocab_size(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().vocab_size)
}

/// Tokens of context; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_context(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().context)
}

/// Elements of an embedding; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_model_hidden_size(model: *const latent_model) -> usize {
    // SAFETY: the caller gives NULL or a model that was not freed
    unsafe { model.as_ref() }.map_or(0, |model| model.0.description().hidden_size)
}
