//! KL divergence of next-token probabilities from those of another run.

use crate::chunks::{ScoredPosition, run_chunks};
use crate::error::EvalError;
use crate::log_softmax::LogSoftmax;
use crate::logits_file::{BaseRow, LogitsReader};
use crate::statistics::{Estimate, Moments, quantile};
use latent_engine::Engine;
use serde::{Deserialize, Serialize};

/// Tokens whose ln p in the base is at or below this value are omitted from the sum: the file
/// clamps smaller ones.
const MIN_LN_BASE: f32 = -16.0;

/// Divergence of a model's probabilities from those of a base, over the same positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Tokens per chunk.
    pub context: usize,
    pub chunks: usize,
    /// Number of scored positions in all chunks.
    pub positions: usize,
    /// The model's perplexity.
    pub perplexity: Estimate,
    pub base_perplexity: Estimate,
    /// ln of the ratio of both perplexities. Its error accounts for their correlation.
    pub ln_ratio: Estimate,
    /// Correlation of the two −ln p, from −1 to 1.
    pub correlation: f64,
    /// Mean of the KL divergence `Σ p_base · ln(p_base ÷ p)`, in nats.
    pub kl: Estimate,
    /// Distribution of the KL divergence over the positions.
    pub kl_quantiles: Quantiles,
    /// Mean of `p − p_base` of the next token.
    pub p_difference: Estimate,
    /// Root mean square of `p − p_base`.
    pub p_difference_rms: Estimate,
    /// Distribution of `p − p_base`.
    pub p_difference_quantiles: Quantiles,
    /// Share of positions at which both have the same likeliest token.
    pub same_top: Estimate,
}

/// Quantiles of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Quantiles {
    pub minimum: f64,
    pub p1: f64,
    pub p5: f64,
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub maximum: f64,
}

impl Quantiles {
    fn of(mut values: Vec<f32>) -> Quantiles {
        values.sort_unstable_by(f32::total_cmp);
        let at = |fraction| quantile(&values, fraction);
        Quantiles {
            minimum: at(0.0),
            p1: at(0.01),
            p5: at(0.05),
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            maximum: at(1.0),
        }
    }
}

/// Sums over the positions.
#[derive(Default)]
struct DivergenceSums {
    nll: Moments,
    base_nll: Moments,
    products: f64,
    kl: Vec<f32>,
    p_difference: Vec<f32>,
    same_top: usize,
}

impl DivergenceSums {
    fn add(
        &mut self,
        position: &ScoredPosition<'_>,
        softmax: &LogSoftmax,
        base: BaseRow<'_>,
        base_nll: Option<f32>,
    ) {
        let next = position.next as usize;
        let (mut kl, mut base_next) = (0.0, 0.0);
        let (mut base_top, mut base_max) = (0, f32::NEG_INFINITY);
        for (token, (ln_base, logit)) in base.ln_p().zip(position.logits).enumerate() {
            if ln_base > base_max {
                // The first of equal values, as in `LogSoftmax`. Otherwise ties would count as
                // different tokens.
                (base_top, base_max) = (token, ln_base);
            }
            if token == next {
                base_next = f64::from(ln_base);
            }
            if ln_base > MIN_LN_BASE {
                kl += f64::from(ln_base.exp()) * (f64::from(ln_base) - softmax.ln_p(*logit));
            }
        }
        // The file clamps small probabilities. If the base ran here, its exact value is used.
        let base_next = base_nll.map_or(base_next, |nll| -f64::from(nll));
        let ln_p = softmax.ln_p(position.logits[next]);
        self.nll.add(-ln_p);
        self.base_nll.add(-base_next);
        self.products += ln_p * base_next;
        self.kl.push(kl as f32);
        self.p_difference.push((ln_p.exp() - base_next.exp()) as f32);
        self.same_top += usize::from(softmax.top == base_top);
    }

    fn finish(self, context: usize, chunks: usize) -> Divergence {
        let count = self.nll.count;
        let (nll, base) = (self.nll.estimate(), self.base_nll.estimate());
        let n = count.max(1) as f64;
        // Covariance of the two means, hence the division by n - 1 and not by 1.
        let covariance = (self.products / n - nll.value * base.value) / (n - 1.0).max(1.0);
        let variance = nll.error.powi(2) + base.error.powi(2) - 2.0 * covariance;
        let spread = nll.error * base.error;
        let moments = |values: &[f32], f: fn(f64) -> f64| {
            let mut moments = Moments::default();
            values.iter().for_each(|value| moments.add(f(f64::from(*value))));
            moments.estimate()
        };
        let squares = moments(&self.p_difference, |d| d * d);
        let rms = squares.value.sqrt();
        // Error propagation of the square root: d√s = ds / (2 √s).
        let rms_error = if rms > 0.0 { 0.5 / rms * squares.error } else { 0.0 };
        Divergence {
            context,
            chunks,
            positions: count,
            perplexity: nll.exp(),
            base_perplexity: base.exp(),
            ln_ratio: Estimate { value: nll.value - base.value, error: variance.max(0.0).sqrt() },
            correlation: if spread > 0.0 { covariance / spread } else { 0.0 },
            // Two passes over stored values: the quantiles need all of them anyway.
            kl: moments(&self.kl, |kl| kl),
            p_difference: moments(&self.p_difference, |d| d),
            p_difference_rms: Estimate { value: rms, error: rms_error },
            same_top: Estimate::share(self.same_top, count),
            kl_quantiles: Quantiles::of(self.kl),
            p_difference_quantiles: Quantiles::of(self.p_difference),
        }
    }
}

/// Runs the text of a logits file and compares every position with it. `bos` replaces the first
/// token of each chunk, as for the base. `base_nll` is the base's own −ln p of the next tokens,
/// which the file clamps; `None` if unknown.
///
/// # Errors
/// As for [`run_chunks`]; logits that are not finite; a file that cannot be read.
pub fn divergence(
    engine: &mut Engine,
    base: &mut LogitsReader,
    base_nll: Option<&[f32]>,
    bos: Option<u32>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Divergence, EvalError> {
    let chunks = base.chunks().clone();
    let mut sums = DivergenceSums::default();
    let mut sink = |position: ScoredPosition<'_>| {
        let softmax = LogSoftmax::of(position.logits).ok_or_else(|| position.not_finite())?;
        // `sums.kl` has an element per position so far, so its length is the position's index.
        let nll = base_nll.and_then(|all| all.get(sums.kl.len()).copied());
        sums.add(&position, &softmax, base.read()?, nll);
        Ok(())
    };
    run_chunks(engine, &chunks, bos, &mut sink, progress)?;
    Ok(sums.finish(chunks.context(), chunks.count()))
}
