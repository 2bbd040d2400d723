//! Reference results in f64, and the allowed errors of kernels.

/// The allowed error: |found − reference| ≤ error · size, where each operation defines the size of
/// a result (for a sum, the sum of its terms' magnitudes).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBound {
    /// The factor; 0 requires equality.
    pub error: f64,
    /// Between which instruction sets bits must be equal.
    pub same_bits: BitIdentity,
    /// The source of the error.
    pub reason: &'static str,
}

/// Between which kernels results must be bit-identical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitIdentity {
    All,
    /// All except the lowest level, which has no fused multiply-add.
    AboveLowest,
    None,
}

/// Reference results, each with the size that scales its allowed error.
#[derive(Default)]
pub struct ReferenceResults {
    values: Vec<f64>,
    sizes: Vec<f64>,
    flushes: bool,
}

/// Maximum size of results whose terms may all be flushed: sums of subnormal f32 or of products of
/// few.
const MAX_FLUSHED: f64 = 1e-34;

impl ReferenceResults {
    pub(crate) fn push(&mut self, value: f64, size: f64) {
        self.values.push(value);
        self.sizes.push(size);
    }

    /// Allows for devices that flush subnormal f32 to 0: their contribution may be missing.
    #[must_use]
    pub(crate) fn flushing(self, flushes: bool) -> ReferenceResults {
        ReferenceResults { flushes, ..self }
    }

    /// Adds a result that may be infinite or NaN.
    pub(crate) fn not_finite(&mut self) {
        self.push(f64::NAN, f64::INFINITY);
    }

    /// Adds a result that must be reproduced exactly.
    pub(crate) fn exact(&mut self, value: f32) {
        self.push(f64::from(value), 0.0);
    }

    /// The largest error of `found` relative to the allowed error (1: at the bound).
    ///
    /// # Errors
    /// Describes the first result beyond the bound, or a wrong number of results.
    pub fn compare(&self, found: &[f32], bound: &ErrorBound) -> Result<f64, String> {
        if found.len() != self.values.len() {
            return Err(format!("{} results, not {}", found.len(), self.values.len()));
        }
        let mut worst = 0.0f64;
        for (i, found) in found.iter().copied().map(f64::from).enumerate() {
            let (truth, size) = (self.values[i], self.sizes[i]);
            // `not_finite` accepts every infinity and NaN.
            let either = truth.is_nan() && size.is_infinite() && !found.is_finite();
            // Also covers infinities, whose difference is NaN, and avoids 0 / 0 below.
            if (found.is_nan() && truth.is_nan()) || found == truth || either {
                continue;
            }
            let missing = if self.flushes && size < MAX_FLUSHED { size } else { 0.0 };
            let (error, allowed) = ((found - truth).abs(), bound.error * size + missing);
            // Comparisons with NaN are false, so it is checked separately.
            if error.is_nan() || error > allowed {
                return Err(format!(
                    "result {i} is {found:e}, not {truth:e}: off by {error:.1e}, allowed {allowed:.1e}"
                ));
            }
            worst = worst.max(error / allowed);
        }
        Ok(worst)
    }
}
