//! Tolerance of a comparison.

use latent_engine::Engine;
use latent_graph::passes::Precision;
use latent_types::{CacheType, TensorType};
use serde::Serialize;
use std::collections::BTreeSet;

/// What decides how exactly a run computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numerics {
    precision: Precision,
    cache: CacheType,
    /// Formats of the matrices.
    weights: BTreeSet<TensorType>,
}

/// What is allowed between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Error of a row, ‖b − a‖ ÷ ‖a‖, that needs no explanation.
    pub level: f64,
    /// How many times the error of its inputs an operation may have.
    pub growth: f64,
}

/// Maximum growth of the inputs' error by one operation: a softmax over scores of a few dozen
/// reaches it.
const GROWTH: f64 = 16.0;

impl Numerics {
    /// Of a loaded model.
    pub fn of(engine: &Engine) -> Numerics {
        let weights = engine.stages().iter().flat_map(|stage| stage.weights());
        let weights = weights.filter(|weight| weight.shape.len() > 1);
        let bind = engine.bind();
        Numerics {
            precision: bind.precision,
            cache: bind.cache,
            weights: weights.map(|weight| weight.ty).collect(),
        }
    }

    /// The relative error that one operation has against exact arithmetic on the same weights, with a margin for what a softmax
    /// makes of it.
    fn level(&self) -> f64 {
        let cache: f64 = match self.cache {
            CacheType::F32 => 0.0,
            CacheType::F16 => 0.01,
            CacheType::Bf16 | CacheType::Int8 | CacheType::Q8_0 => 0.05,
            CacheType::Fp8 => 0.1,
            CacheType::Q4_0 => 0.2,
        };
        let products: f64 = match self.precision {
            Precision::Exact => 1e-4,
            Precision::Default if self.weights.iter().any(|ty| ty.is_quantized()) => 0.1,
            Precision::Default => 0.05,
        };
        products.max(cache)
    }
}

/// The relative error of weights stored in a format.
fn stored(ty: TensorType) -> f64 {
    let bits = ty.bits_per_weight();
    match ty {
        TensorType::F32 | TensorType::F64 => 0.0,
        TensorType::F16 => 5e-4,
        TensorType::BF16 => 4e-3,
        TensorType::F8_E4M3 => 0.05,
        // half a bit more or less says little here
        _ => 1.5 * (-bits.min(8.0)).exp2(),
    }
}

impl Tolerance {
    /// For two runs; none: values from elsewhere, taken as exact, of the same weights.
    pub fn between(a: Option<&Numerics>, b: Option<&Numerics>) -> Tolerance {
        let own = [a, b].into_iter().flatten().map(Numerics::level).fold(1e-4, f64::max);
        let weights = match (a, b) {
            (Some(a), Some(b)) if a.weights != b.weights => {
                a.weights.iter().chain(&b.weights).map(|ty| 4.0 * stored(*ty)).fold(0.0, f64::max)
            }
            _ => 0.0,
        };
        Tolerance { level: own.max(weights).min(0.5), growth: GROWTH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_exact_side_decides() {
        let numerics = |precision, cache, ty| Numerics { precision, cache, weights: [ty].into() };
        let exact = numerics(Precision::Exact, CacheType::F32, TensorType::Q4_K);
        let default = numerics(Precision::Default, CacheType::F16, TensorType::Q4_K);
        let other = numerics(Precision::Exact, CacheType::F32, TensorType::F32);
        let level = |a, b| Tolerance::between(a, b).level;
        assert_eq!(level(Some(&exact), None), level(Some(&exact), Some(&exact)));
        assert_eq!(level(Some(&exact), Some(&default)), 0.1);
        let across = level(Some(&exact), Some(&other));
        assert!(across > 0.2 && across < 0.5, "{across}");
        let wider = numerics(Precision::Exact, CacheType::Bf16, TensorType::Q4_K);
        assert_eq!(level(Some(&exact), Some(&wider)), 0.05);
    }
}
