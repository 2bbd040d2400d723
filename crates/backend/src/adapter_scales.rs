//! Scales of a model's LoRA adapters for one sequence.

use std::sync::Arc;

/// The scale of each adapter of the model, for the rows of one sequence. Without any, all are 0.
#[derive(Clone, Debug, Default)]
pub struct AdapterScales(Option<Arc<[f32]>>);

impl AdapterScales {
    /// Scales in the order of the model's adapters.
    pub fn new(scales: &[f32]) -> AdapterScales {
        AdapterScales((!scales.is_empty()).then(|| scales.into()))
    }

    pub fn get(&self, adapter: usize) -> f32 {
        self.as_slice().get(adapter).copied().unwrap_or(0.0)
    }

    pub fn as_slice(&self) -> &[f32] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// Compares bits.
impl PartialEq for AdapterScales {
    fn eq(&self, other: &AdapterScales) -> bool {
        // `Eq` needs a reflexive comparison, which f32 lacks for NaN. 0 and −0 may differ: equal
        // scales only let rows be shared.
        let bits = |scales: &AdapterScales| scales.as_slice().iter().map(|s| s.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other)
    }
}

impl Eq for AdapterScales {}
