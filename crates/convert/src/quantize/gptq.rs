//! GPTQ for the tensors of an assignment: which matrices are rounded by their Hessians, and the
//! cached factors.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::hessians::Hessians;
use latent_formats::gguf::{Writer, WriterValue};
use latent_quant::gptq::{GptqError, GptqOptions, HessianFactor, gptq_types, group_len, has_gptq};
use latent_types::TensorType;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Number of cached factors.
// Threads hold further ones while they use them.
pub(crate) const FACTORS_KEPT: usize = 4;

/// Minimum number of input rows, as a fraction of the columns.
// With fewer, the Hessian has a low rank and says little about other inputs, so the search with
// importances is used. Rarely chosen experts are the usual case.
const FEWEST_ROWS: f32 = 1.0 / 16.0;

/// State of GPTQ rounding.
pub(crate) struct Gptq<'a> {
    pub hessians: &'a Hessians,
    pub options: GptqOptions,
    factors: Mutex<VecDeque<CachedFactor>>,
}

/// Key of a factor: source weight, matrix, and group length.
type FactorKey = (String, usize, usize);

struct CachedFactor {
    key: FactorKey,
    factor: Arc<OnceLock<Result<Arc<HessianFactor>, GptqError>>>,
}

impl<'a> Gptq<'a> {
    pub(crate) fn new(hessians: &'a Hessians, options: GptqOptions) -> Gptq<'a> {
        Gptq { hessians, options, factors: Mutex::default() }
    }
}

impl Gptq<'_> {
    /// Whether a tensor is rounded by Hessians: it has them, and its new type supports GPTQ.
    pub(crate) fn applies(&self, tensor: &AssignedTensor) -> bool {
        tensor.from != tensor.to
            && has_gptq(tensor.to)
            // Rows of the embedding are looked up, not multiplied: its inputs are one-hot vectors.
            && tensor.name != "token_embd.weight"
            && self.hessians.entry(&tensor.name).is_some()
    }

    /// Whether a matrix has enough input rows for GPTQ.
    pub(crate) fn rounds(&self, tensor: &AssignedTensor, matrix: usize) -> bool {
        self.applies(tensor)
            && self.hessians.entry(&tensor.name).is_some_and(|entry| {
                entry.counts.get(matrix).is_some_and(|rows| *rows >= entry.columns as f32 * FEWEST_ROWS)
            })
    }

    /// The factor for a matrix of a tensor, or `None` if it is not rounded by GPTQ.
    pub(crate) fn factor(
        &self,
        tensor: &AssignedTensor,
        matrix: usize,
    ) -> Result<Option<Arc<HessianFactor>>, ConvertError> {
        let (Some(group), Some(entry)) = (group_len(tensor.to), self.hessians.entry(&tensor.name)) else {
            return Ok(None);
        };
        if !self.rounds(tensor, matrix) {
            return Ok(None);
        }
        let made = self.cached((entry.source.clone(), matrix, group));
        // The first thread computes the factor; others that need it wait instead of repeating the
        // work. The cache is not locked meanwhile.
        let factor = made.get_or_init(|| {
            let triangle = self.hessians.triangle(entry, matrix);
            HessianFactor::new(&triangle, entry.columns, group, self.options).map(Arc::new)
        });
        match factor {
            Ok(factor) => Ok(Some(factor.clone())),
            Err(error) => Err(ConvertError::Hessian {
                path: self.hessians.path().to_owned(),
                problem: format!("matrix {matrix} of {}: {error}", tensor.name),
            }),
        }
    }

    fn cached(&self, key: FactorKey) -> Arc<OnceLock<Result<Arc<HessianFactor>, GptqError>>> {
        let mut factors = self.factors.lock().unwrap_or_else(PoisonError::into_inner);
        let found = factors.iter().position(|cached| cached.key == key);
        let cached = found
            .and_then(|at| factors.remove(at))
            .unwrap_or_else(|| CachedFactor { key, factor: Arc::default() });
        let factor = cached.factor.clone();
        // Most recently used first.
        factors.push_front(cached);
        factors.truncate(FACTORS_KEPT);
        factor
    }

    /// Records the options in the model's metadata.
    pub(crate) fn describe(&self, writer: &mut Writer) {
        writer.set_key("quantize.gptq.damping", WriterValue::F64(self.options.damping));
        writer.set_key("quantize.gptq.act_order", WriterValue::Bool(self.options.act_order));
    }

    /// Fingerprint of everything that changes the written bytes.
    pub(crate) fn fingerprint(&self) -> [u64; 4] {
        let identity = self.hessians.identity();
        [identity.header, identity.sample, self.options.damping.to_bits(), u64::from(self.options.act_order)]
    }
}

/// Names of the types with GPTQ, for messages.
pub(crate) fn gptq_type_names() -> String {
    gptq_types().map(TensorType::name).collect::<Vec<_>>().join(", ")
}
