//! Tiny random models, created once and kept in memory.

use latent_engine::{Engine, EngineError, EngineOptions};
use latent_formats::Checkpoint;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use std::sync::{Arc, OnceLock};

/// Shapes of different circuits, with and without experts and a query latent.
pub(crate) const SHAPES: [&str; 5] = ["tiny-v3", "tiny-minicpm3", "tiny-plm", "tiny-v2", "tiny-dense"];

/// The model of this shape with Q8_0 weights and two layers (the second one with experts if the
/// shape has any).
pub(crate) fn tiny(shape: usize) -> Arc<Checkpoint> {
    static ALL: [OnceLock<Arc<Checkpoint>>; SHAPES.len()] = [const { OnceLock::new() }; SHAPES.len()];
    let shape = shape % SHAPES.len();
    let make = || {
        let recipe = ModelRecipe {
            layers: Some(2),
            ..ModelRecipe::new(SHAPES[shape], RandomWeightTypes::from(latent_types::TensorType::Q8_0))
        };
        checkpoint(&recipe)
    };
    ALL[shape].get_or_init(make).clone()
}

/// The model of a recipe, read from a temporary file.
///
/// # Panics
/// If it cannot be written or opened.
pub(crate) fn checkpoint(recipe: &ModelRecipe) -> Arc<Checkpoint> {
    let written = || -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        // Read into memory: the folder is deleted when this closure returns.
        Ok(std::fs::read(recipe.write_gguf(&folder.path().join("tiny.gguf"))?.first)?)
    };
    let bytes = written().unwrap_or_else(|error| panic!("{recipe:?}: {error}"));
    let opened = Checkpoint::from_bytes("tiny.gguf", bytes);
    Arc::new(opened.unwrap_or_else(|error| panic!("{recipe:?}: {error}")))
}

/// Options with one thread and a short context.
pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        context: Some(128),
        max_batch_tokens: Some(32),
        ..EngineOptions::default()
    }
}

pub(crate) fn load(checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Result<Engine, EngineError> {
    Engine::load(&*latent_backends::cpu(), checkpoint, options, &mut |_, _| {})
}
