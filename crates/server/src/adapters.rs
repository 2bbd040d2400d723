//! LoRA adapters of a served model and their scales, as in llama.cpp's server.

use crate::error::ApiError;
use crate::json::ObjectFields;
use latent_engine::{AdapterScales, Engine};
use latent_formats::AttachedAdapter;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The scales that clients have set for the adapters of a model. They survive an unload and a
/// reload after a fault, which clients do not notice. The files are stored with them: after a
/// change of the list of models the adapters may be others.
#[derive(Debug, Default)]
pub(crate) struct SetScales(Mutex<Option<(Vec<String>, AdapterScales)>>);

impl SetScales {
    fn lock(&self) -> MutexGuard<'_, Option<(Vec<String>, AdapterScales)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scales, if they were set for these files.
    fn of(&self, paths: &[String]) -> Option<AdapterScales> {
        self.lock().as_ref().filter(|(of, _)| of == paths).map(|(_, scales)| scales.clone())
    }
}

/// The adapters of a model, and the scales of requests without `lora`.
#[derive(Debug, Default)]
pub(crate) struct ServedAdapters {
    paths: Vec<String>,
    scales: RwLock<AdapterScales>,
    set: Arc<SetScales>,
}

impl ServedAdapters {
    pub(crate) fn of(engine: &Engine, set: &Arc<SetScales>) -> ServedAdapters {
        let path = |adapter: &AttachedAdapter| adapter.path.display().to_string();
        let paths: Vec<String> = engine.adapters().iter().map(path).collect();
        let own = || {
            let scales: Vec<f32> = engine.adapters().iter().map(|adapter| adapter.scale).collect();
            AdapterScales::new(&scales)
        };
        let scales = RwLock::new(set.of(&paths).unwrap_or_else(own));
        ServedAdapters { paths, scales, set: Arc::clone(set) }
    }

    /// The scales of requests without `lora`. `None` for a model without adapters.
    pub(crate) fn current(&self) -> Option<AdapterScales> {
        let scales = self.scales.read().unwrap_or_else(PoisonError::into_inner).clone();
        (!self.paths.is_empty()).then_some(scales)
    }

    pub(crate) fn set(&self, scales: AdapterScales) {
        // Held until both are written: of two concurrent requests, the same one must win both.
        let mut set = self.set.lock();
        *set = Some((self.paths.clone(), scales.clone()));
        *self.scales.write().unwrap_or_else(PoisonError::into_inner) = scales;
    }

    /// The response of `GET /lora-adapters`.
    pub(crate) fn list(&self) -> Value {
        let scales = self.current().unwrap_or_default();
        let one = |(id, path): (usize, &String)| json!({"id": id, "path": path, "scale": scales.get(id), "task_name": "", "prompt_prefix": ""});
        self.paths.iter().enumerate().map(one).collect()
    }

    /// Parses a list of `{id, scale}`. As in llama.cpp, adapters that it does not name get 0.
    pub(crate) fn scales(&self, list: &[ObjectFields<'_>]) -> Result<AdapterScales, ApiError> {
        let mut scales = vec![0.0; self.paths.len()];
        for fields in list {
            let id = fields.usize("id")?.ok_or_else(|| fields.missing("id"))?;
            let scale = fields.f32("scale")?.ok_or_else(|| fields.missing("scale"))?;
            let Some(own) = scales.get_mut(id) else {
                let problem = match self.paths.len() {
                    0 => "the model has no adapters: start the server with --lora FILE".to_owned(),
                    count => format!("expected an adapter's id from 0 to {}", count - 1),
                };
                return Err(fields.error("id", problem));
            };
            // A JSON number beyond the range of f32 has become infinite.
            if !scale.is_finite() {
                return Err(fields.error("scale", "expected a finite number"));
            }
            *own = scale;
        }
        Ok(AdapterScales::new(&scales))
    }
}
