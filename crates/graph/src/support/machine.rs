//! The machine and the known tensors that a support report describes.

use crate::circuit::{Circuit, DeclaredTensors, TensorIndex, TensorNaming};
use crate::passes::{BindOptions, CacheForm, MlaChoice};
use crate::target::BackendTarget;
use latent_formats::Outline;
use latent_types::TensorType;

/// What kernels there are, and how the model is to be run.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// What plans would be made for.
    pub target: &'a BackendTarget,
    /// Precision, ISA limit and cache type.
    pub bind: BindOptions,
    /// Which attention paths of MLA run.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// A circuit to be run instead of the model's own.
    pub circuit: Option<&'a Circuit>,
}

/// The tensors of the file; where it lacks one, the one that its config implies.
pub(crate) struct KnownTensors<'a> {
    pub(super) outline: &'a Outline,
    pub(super) declared: &'a DeclaredTensors,
}

impl TensorIndex for KnownTensors<'_> {
    fn naming(&self) -> TensorNaming {
        self.declared.naming()
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        let declared = self.declared.find(name);
        match (self.outline.tensor(name), declared) {
            // the format is the file's; a shape that the config contradicts has been reported
            (Some(tensor), Some((_, shape))) => Some((tensor.ty, shape)),
            (Some(tensor), None) => Some((tensor.ty, tensor.shape.clone())),
            (None, declared) => declared,
        }
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        let file = self.outline.tensors().iter().map(|t| (t.name.as_str(), t.ty, t.shape.as_slice()));
        file.chain(self.declared.iter()).collect()
    }

    fn file(&self) -> String {
        self.outline.display_name()
    }
}
