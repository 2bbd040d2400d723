//! A checkpoint with adapters, whose matrices are added to the model's tensors.

use crate::adapter::AdapterFile;
use crate::attached::{AttachedAdapter, AttachedPair};
use crate::builder::by_name;
use crate::checkpoint::{Checkpoint, CheckpointSource};
use crate::error::{AdapterError, FormatError};
use crate::identity::fnv;
use crate::limits;
use crate::tensor::TensorLocation;
use std::sync::Arc;

impl Checkpoint {
    /// The adapters in the order of [`with_adapters`](Self::with_adapters).
    pub fn adapters(&self) -> &[AttachedAdapter] {
        &self.adapters
    }

    /// The same model with adapters and their default scales. The fingerprint depends on all bytes
    /// of the adapters and on the scales, so that cached rows of one model are not used for the
    /// other.
    ///
    /// # Errors
    /// [`FormatError::Adapter`] for an adapter of another architecture, and for a scale that is not
    /// finite.
    pub fn with_adapters(mut self, adapters: Vec<(AdapterFile, f32)>) -> Result<Checkpoint, FormatError> {
        if adapters.is_empty() {
            return Ok(self);
        }
        if adapters.len() > limits::MAX_ADAPTERS {
            return Err(FormatError::adapter(&self.path, AdapterError::TooMany(limits::MAX_ADAPTERS)));
        }
        let mut attached = Vec::with_capacity(adapters.len());
        // Before the matrices are added, since adapters must not change `identity`.
        let in_files = self.in_files.clone().unwrap_or_else(|| Arc::new(self.tensors.clone()));
        for (number, (adapter, scale)) in adapters.into_iter().enumerate() {
            self.check(&adapter, scale)?;
            let file = self.files.len();
            let AdapterFile { path, naming, pairs, bytes, header, hash, .. } = adapter;
            self.fingerprint =
                fnv(fnv(self.fingerprint, &hash.to_le_bytes()), &scale.to_bits().to_le_bytes());
            self.files.push(bytes);
            self.headers.push(header);
            let mut names = Vec::with_capacity(pairs.len());
            for pair in pairs {
                let [a, b] = [pair.a, pair.b].map(|mut info| {
                    if let TensorLocation::File { start, .. } = info.place {
                        info.place = TensorLocation::File { file, start };
                    }
                    // Adapters for the same module have tensors with the same names.
                    info.name = format!("{ADAPTER_PREFIX}{number}.{}", info.name);
                    let name = info.name.clone();
                    self.tensors.push(info);
                    name
                });
                names.push(AttachedPair { target: pair.target, a, b, factor: pair.factor });
            }
            attached.push(AttachedAdapter { path, naming, scale, pairs: names });
        }
        self.by_name = by_name(&self.tensors);
        self.in_files = Some(in_files);
        self.adapters = Arc::new(attached);
        Ok(self)
    }

    fn check(&self, adapter: &AdapterFile, scale: f32) -> Result<(), FormatError> {
        if !scale.is_finite() {
            return Err(FormatError::adapter(adapter.path(), AdapterError::Scale(scale)));
        }
        // PEFT folders do not state an architecture. Then only names and shapes can be compared.
        let CheckpointSource::Gguf(source) = self.source() else { return Ok(()) };
        let base = source.metadata.str("general.architecture")?;
        match (&adapter.architecture, base) {
            (Some(of_adapter), Some(base)) if of_adapter != base => {
                let error = AdapterError::Architecture { adapter: of_adapter.clone(), base: base.to_owned() };
                Err(FormatError::adapter(adapter.path(), error))
            }
            _ => Ok(()),
        }
    }
}

/// Prefix of an adapter's matrices in a checkpoint.
const ADAPTER_PREFIX: &str = "adapter.";
