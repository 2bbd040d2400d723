//! Tolerance of a comparison.

use latent_engine::Engine;
use latent_graph::passes::Precision;
use latent_types::{CacheType, TensorType};
use serde::Serialize;
use std::collections::BTreeSet;

/// The settings that determine the accuracy of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numerics {
    precision: Precision,
    cache: CacheType,
    /// Formats of the matrices.
    weights: BTreeSet<TensorType>,
}

/// Allowed differences between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Error of a row, ‖b − a‖ ÷ ‖a‖, that counts as equal.
    pub level: f64,
    /// Maximum error of an operation relative to the error of its inputs.
    pub growth: f64,
}

/// Maximum growth of the inputs' error by an operation. A softmax over a few dozen scores reaches
/// it.
const GROWTH: f64 = 16.0;

impl Numerics {
    /// The settings of a loaded model.
    pub fn of(engine: &Engine) -> Numerics {
        let weights = engine.stages().iter().flat_map(|stage| stage.weights());
        // Vectors (norms, biases) are f32 in all files.
        let weights = weights.filter(|weight| weight.shape.len() > 1);
        let bind = engine.bind();
        Numerics {
            precision: bind.precision,
            cache: bind.cache,
            weights: weights.map(|weight| weight.ty).collect(),
        }
    }

    /// Relative error of one operation compared with exact arithmetic on the same weights, with a
    /// margin for its amplification by a softmax.
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

/// Relative error of weights stored in a format.
fn stored(ty: TensorType) -> f64 {
    let bits = ty.bits_per_weight();
    match ty {
        TensorType::F32 | TensorType::F64 => 0.0,
        TensorType::F16 => 5e-4,
        TensorType::BF16 => 4e-3,
        TensorType::F8_E4M3 => 0.05,
        // Scales and mixes change the effective bits by about half a bit, which is within the
        // factor.
        _ => 1.5 * (-bits.min(8.0)).exp2(),
    }
}

impl Tolerance {
    /// The tolerance between two runs. `None` is another program's values, taken as exact and with
    /// the same weights.
    pub fn between(a: Option<&Numerics>, b: Option<&Numerics>) -> Tolerance {
        let own = [a, b].into_iter().flatten().map(Numerics::level).fold(1e-4, f64::max);
        let weights = match (a, b) {
            (Some(a), Some(b)) if a.weights != b.weights => {
                a.weights.iter().chain(&b.weights).map(|ty| 4.0 * stored(*ty)).fold(0.0, f64::max)
            }
            _ => 0.0,
        };
        // A level above 0.5 would accept wrong results.
        Tolerance { level: own.max(weights).min(0.5), growth: GROWTH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_accurate_side_sets_the_tolerance() {
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
