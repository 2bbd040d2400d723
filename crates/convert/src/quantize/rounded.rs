//! GPTQ on an assignment.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::assignment::Assignment;
use crate::quantize::gptq::{FACTORS_KEPT, Gptq};
use crate::quantize::hessians::Hessians;
use crate::quantize::shape::columns_rows_matrices;
use latent_quant::gptq::{GptqOptions, HessianFactor, has_gptq};

/// Number of a tensor's matrices by method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundedMatrices {
    /// Quantized by GPTQ.
    pub rounded: usize,
    /// Quantized by the search with importances, because too few input rows were seen.
    pub searched: usize,
}

impl<'a> Assignment<'a> {
    /// Enables GPTQ for tensors whose types support it. Other tensors use the search with
    /// importances.
    ///
    /// # Errors
    /// The mix's type has no GPTQ, or the Hessians are of another model.
    pub fn use_hessians(&mut self, hessians: &'a Hessians, options: GptqOptions) -> Result<(), ConvertError> {
        let base = self.mix().base();
        if !has_gptq(base) {
            return Err(ConvertError::NoGptq(base));
        }
        if !(options.damping > 0.0 && options.damping.is_finite()) {
            return Err(ConvertError::Damping(options.damping));
        }
        hessians.check(&self.weights.display_name(), &self.weights.tensors())?;
        for tensor in &self.tensors {
            let (columns, _, matrices) = columns_rows_matrices(&tensor.shape);
            match hessians.entry(&tensor.name) {
                // The embedding is looked up, not multiplied, so its Hessian is not used.
                Some(_) if tensor.name == "token_embd.weight" => {}
                Some(entry) if (entry.columns, entry.counts.len()) != (columns, matrices) => {
                    return Err(hessians.other_model(format!(
                        "its Hessians for {} have {} columns in {} matrices, but the tensor has {columns} in \
                         {matrices}",
                        tensor.name,
                        entry.columns,
                        entry.counts.len()
                    )));
                }
                _ => {}
            }
        }
        self.gptq = Some(Gptq::new(hessians, options));
        // GPTQ adds keys, so the header changes.
        self.declare()
    }

    /// How the matrices of a tensor are quantized. `None` if no Hessian is used for it.
    pub fn rounded(&self, tensor: &AssignedTensor) -> Option<RoundedMatrices> {
        let gptq = self.gptq.as_ref()?;
        let (_, _, matrices) = columns_rows_matrices(&tensor.shape);
        let rounded = (0..matrices).filter(|matrix| gptq.rounds(tensor, *matrix)).count();
        gptq.applies(tensor).then_some(RoundedMatrices { rounded, searched: matrices - rounded })
    }

    /// Memory for Hessians and factors while writing with `threads` threads, in bytes.
    pub fn gptq_bytes(&self, threads: usize) -> u64 {
        let widths =
            self.tensors.iter().filter(|tensor| self.rounded(tensor).is_some_and(|all| all.rounded > 0));
        let widest = widths.map(|tensor| columns_rows_matrices(&tensor.shape).0).max().unwrap_or(0);
        let factor = widest as u64 * (widest as u64 + 1) / 2 * 4;
        HessianFactor::working_bytes(widest).saturating_mul(threads as u64) + factor * FACTORS_KEPT as u64
    }
}
