//! An outline as keys and tensors.

use super::checkpoint::{CheckpointShapes, GgufKeys};
use super::source::{ConfigTensors, JsonKeys, MetadataKeys, MetadataValue};
use latent_formats::{CheckpointSource, Outline};

/// An outline as keys and tensors.
///
/// If its data are missing, LongRoPE's factors read as 1. That is enough to tell whether the model
/// is supported, but not to run it.
pub(crate) struct OutlineFile<'a>(pub(crate) &'a Outline);

impl OutlineFile<'_> {
    fn with<T>(&self, then: impl FnOnce(&dyn MetadataKeys) -> T) -> T {
        match self.0.source() {
            CheckpointSource::Gguf(source) => {
                then(&GgufKeys { file: self.0.display_name(), metadata: &source.metadata })
            }
            CheckpointSource::HuggingFace(source) => {
                let name = self.0.display_name();
                let file =
                    if name.ends_with(".json") { name } else { format!("{name}/{}", source.config_file()) };
                then(&JsonKeys { file: &file, object: &source.config })
            }
        }
    }
}

impl MetadataKeys for OutlineFile<'_> {
    fn file(&self) -> String {
        self.with(|keys| keys.file())
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        self.with(|keys| keys.field(key))
    }

    fn mentions(&self, key: &str) -> bool {
        self.with(|keys| keys.mentions(key))
    }
}

impl ConfigTensors for OutlineFile<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.tensor(name).map(|tensor| tensor.shape.clone())
    }

    fn equal(&self, one: &str, other: &str) -> Option<bool> {
        CheckpointShapes(self.0.whole()?).equal(one, other)
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        if let Some(checkpoint) = self.0.whole() {
            return CheckpointShapes(checkpoint).f32s(name);
        }
        let tensor = self.0.tensor(name).filter(|tensor| tensor.ty == latent_types::TensorType::F32)?;
        Some(vec![1.0; tensor.shape.iter().product()])
    }
}
