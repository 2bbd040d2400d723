//! The machine and the known tensors that a support report describes.

use crate::circuit::{Circuit, DeclaredTensors, TensorIndex, TensorNaming};
use crate::passes::{BindOptions, CacheForm, MlaChoice};
use crate::target::BackendTarget;
use latent_formats::Outline;
use latent_types::TensorType;

/// The available kernels, and the options of a run.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// The target of plans.
    pub target: &'a BackendTarget,
    /// Precision, ISA limit and cache type.
    pub bind: BindOptions,
    /// The attention paths of MLA.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// A circuit to use instead of the model's own.
    pub circuit: Option<&'a Circuit>,
}

/// The tensors of the file, or those that the config implies if the file lacks them.
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
            // The format is the file's. A wrong shape was reported already, so the declared one
            // lets the plan be built.
            (Some(tensor), Some((_, shape))) => Some((tensor.ty, shape)),
            // A tensor that the config does not imply, such as an unknown one.
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
