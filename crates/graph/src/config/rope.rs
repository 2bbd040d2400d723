//! Rotary embedding: frequencies and magnitudes of every scaling that the family uses.

use super::decimal::tidied;

/// The two elements of a head that form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// (0, 1), (2, 3), …: DeepSeek's weights as published, llama.cpp's NORM.
    Interleaved,
    /// (0, d/2), (1, d/2 + 1), …: llama.cpp's NEOX; MiniCPM3.
    NeoX,
}

/// Rotary embedding of one model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RopeSpec {
    /// θ: the base of the frequencies.
    pub base: f64,
    /// How elements pair up.
    pub pairs: RopePairs,
    /// Number of rotated elements (even): `rope` of the attention shape, or 0 without rotation.
    pub dims: usize,
    /// How positions beyond the original context are handled.
    pub scaling: RopeScaling,
}

/// Scaling of the frequencies.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Factor by which the context was extended.
        factor: f64,
    },
    /// YaRN: fast pairs keep their frequency, slow ones are divided by `factor`, and a ramp blends
    /// the pairs between them.
    Yarn {
        /// Factor by which the context was extended.
        factor: f64,
        /// Context before the extension, in tokens.
        original: usize,
        /// Rotations over the original context above which a pair is fast.
        beta_fast: f64,
        /// Rotations below which a pair is slow.
        beta_slow: f64,
        /// Weight of the original frequency in fast pairs, from 0 (all pairs are divided) to 1
        /// (YaRN as published).
        ext_factor: f64,
        /// Factor on cos and sin.
        magnitude: f64,
    },
    /// LongRoPE: every frequency is divided by its own factor, from the `long` list if the
    /// session's context exceeds `original`.
    LongRope {
        /// Context before the extension, in tokens.
        original: usize,
        /// Factors, one per pair, up to `original` tokens.
        short: Vec<f64>,
        /// Factors for longer contexts.
        long: Vec<f64>,
        /// Factor on cos and sin.
        magnitude: f64,
    },
}

impl RopeSpec {
    /// No rotation (NoPE), for hybrids whose recurrent layers encode the order of tokens.
    pub fn none() -> RopeSpec {
        RopeSpec { base: 1e4, pairs: RopePairs::Interleaved, dims: 0, scaling: RopeScaling::None }
    }

    /// Radians per position of each of the `dims / 2` pairs, for a session of `session_context`
    /// tokens.
    ///
    /// Only LongRoPE uses the session's context. Like llama.cpp, it chooses a list once per
    /// session, so that keys in the cache stay comparable. Transformers chooses per call, by the
    /// longest position.
    pub fn inverse_frequencies(&self, session_context: usize) -> Vec<f64> {
        // f64: an f32 error in a frequency is multiplied by the position.
        let d = self.dims as f64;
        let plain = (0..self.dims / 2).map(|pair| self.base.powf(-2.0 * pair as f64 / d));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, .. } => {
                let (low, high) = yarn_range(self.base, self.dims, *original, *beta_fast, *beta_slow);
                // As in DeepSeek's code: a ramp without width becomes a step, not a division by
                // zero.
                let width = (high - low).max(0.001);
                let blend = |(pair, fast): (usize, f64)| {
                    let slow_part = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                    // llama.cpp's `ext_factor` scales how much of the original frequency is mixed
                    // in.
                    let kept = (1.0 - slow_part) * ext_factor;
                    fast / factor * (1.0 - kept) + fast * kept
                };
                plain.enumerate().map(blend).collect()
            }
            RopeScaling::LongRope { original, short, long, .. } => {
                // Strictly longer: at exactly the original context the short list holds, as in
                // llama.cpp.
                let factors = if session_context > *original { long } else { short };
                plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
        }
    }

    /// Factor on cos and sin.
    pub fn magnitude(&self) -> f64 {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::LongRope { magnitude, .. } => *magnitude,
        }
    }
}

/// The pairs between which YaRN's ramp runs. Pairs up to the first keep their frequency; pairs from
/// the second on are divided by the factor.
///
/// NTK-by-parts (YaRN, arXiv 2309.00071, §3.2): pair `i` turns β times over the original context at
/// `i = d · ln(original / (2πβ)) / (2 ln θ)`. As in DeepSeek's code, the result is rounded outwards
/// and clamped to [0, d − 1].
pub(super) fn yarn_range(base: f64, dims: usize, original: usize, fast: f64, slow: f64) -> (f64, f64) {
    let d = dims as f64;
    let pair =
        |beta: f64| d * (original as f64 / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
    (pair(fast).floor().max(0.0), pair(slow).ceil().min(d - 1.0))
}

/// YaRN's growth of attention with the factor: `0.1 · mscale · ln(factor) + 1`, and 1 for factors
/// up to 1 (DeepSeek's `yarn_get_mscale`).
pub(super) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The inverse of [`yarn_mscale`]: the `mscale` for a given `growth`.
pub(super) fn mscale_of(factor: f64, growth: f64) -> f64 {
    if factor <= 1.0 { 0.0 } else { tidied((growth - 1.0) / (0.1 * factor.ln())) }
}

/// LongRoPE's factor on cos and sin: `√(1 + ln(max / original) / ln(original))`, and 1 if the
/// context did not grow.
pub(super) fn longrope_magnitude(factor: f64, original: usize) -> f64 {
    if factor <= 1.0 || original <= 1 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(base: f64, original: usize, fast: f64, slow: f64) -> (f64, f64) {
        yarn_range(base, 64, original, fast, slow)
    }

    #[test]
    fn ramps_of_the_published_models() {
        assert_eq!(ramp(1e4, 4096, 32.0, 1.0), (10.0, 23.0), "DeepSeek-V2, V3");
        assert_eq!(ramp(5e4, 4096, 1.0, 1.0), (19.0, 20.0), "Kimi-K2");
        assert_eq!(ramp(5e4, 4096, 32.0, 1.0), (8.0, 20.0), "Kimi-K2.5");
        assert_eq!(ramp(1e5, 4096, 32.0, 1.0), (8.0, 19.0), "GigaChat3");
        assert_eq!(ramp(1e4, 8192, 32.0, 1.0), (12.0, 25.0), "Mistral Large 3");
    }

    #[test]
    fn a_ramp_is_clamped_to_the_rotated_numbers() {
        // 128 tokens: a fast pair would be before the first
        assert_eq!(yarn_range(1e4, 16, 128, 32.0, 1.0).0, 0.0);
        // A base near 1 puts both ends far past the last pair.
        assert_eq!(yarn_range(1.5, 16, 4096, 32.0, 1.0).1, 15.0);
    }

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { base: 1e4, pairs: RopePairs::Interleaved, dims: 64, scaling }
    }

    fn yarn(beta_fast: f64, beta_slow: f64) -> RopeSpec {
        mixed(beta_fast, beta_slow, 1.0)
    }

    #[test]
    fn yarn_keeps_fast_pairs_divides_slow_ones_and_ramps_between() {
        let (plain, scaled) =
            (spec(RopeScaling::None).inverse_frequencies(1), yarn(32.0, 1.0).inverse_frequencies(1));
        assert_eq!((plain.len(), scaled.len()), (32, 32));
        for pair in 0..32 {
            let share = ((pair as f64 - 10.0) / 13.0).clamp(0.0, 1.0);
            let expected = plain[pair] * (1.0 - share + share / 40.0);
            assert!((scaled[pair] - expected).abs() <= 1e-15 * expected, "pair {pair}");
        }
        assert_eq!(scaled[10], plain[10]);
        assert!(scaled[11] < plain[11]);
        assert_eq!(scaled[23], plain[23] / 40.0);
    }

    fn mixed(beta_fast: f64, beta_slow: f64, ext_factor: f64) -> RopeSpec {
        let (factor, original, magnitude) = (40.0, 4096, 1.25);
        spec(RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, magnitude })
    }

    #[test]
    fn an_ext_factor_below_one_divides_fast_pairs_in_part() {
        let plain = spec(RopeScaling::None).inverse_frequencies(1);
        let (half, none) =
            (mixed(32.0, 1.0, 0.5).inverse_frequencies(1), mixed(32.0, 1.0, 0.0).inverse_frequencies(1));
        for pair in 0..32 {
            let kept = 0.5 * (1.0 - ((pair as f64 - 10.0) / 13.0).clamp(0.0, 1.0));
            let expected = plain[pair] * (kept + (1.0 - kept) / 40.0);
            assert!((half[pair] - expected).abs() <= 1e-15 * expected, "pair {pair}");
            assert_eq!(none[pair], plain[pair] / 40.0, "pair {pair}");
        }
    }

    #[test]
    fn a_ramp_without_width_is_a_step() {
        let spec = RopeSpec { dims: 16, ..yarn(1e6, 1e5) };
        let frequencies = spec.inverse_frequencies(1);
        assert!(frequencies.iter().all(|f| f.is_finite() && *f > 0.0));
        assert_eq!(frequencies[0], 1.0);
        assert!((frequencies[1] * 40.0 - 1e4f64.powf(-2.0 / 16.0)).abs() < 1e-15);
    }

    #[test]
    fn frequencies_without_scaling_fall_from_one() {
        let frequencies = spec(RopeScaling::None).inverse_frequencies(1);
        assert_eq!(frequencies[0], 1.0);
        assert!((frequencies[16] - 0.01).abs() < 1e-15);
        assert_eq!(spec(RopeScaling::Linear { factor: 4.0 }).inverse_frequencies(1)[0], 0.25);
    }

    #[test]
    fn longrope_chooses_its_list_by_the_sessions_context() {
        let scaling = RopeScaling::LongRope {
            original: 4096,
            short: vec![2.0; 32],
            long: vec![8.0; 32],
            magnitude: longrope_magnitude(8.0, 4096),
        };
        let spec = spec(scaling);
        assert_eq!(spec.inverse_frequencies(4096)[0], 0.5);
        assert_eq!(spec.inverse_frequencies(4097)[0], 0.125);
        assert!((spec.magnitude() - (1.0f64 + 8f64.ln() / 4096f64.ln()).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn magnitudes() {
        assert_eq!(spec(RopeScaling::None).magnitude(), 1.0);
        assert_eq!(yarn(32.0, 1.0).magnitude(), 1.25);
        assert_eq!(yarn_mscale(1.0, 1.0), 1.0);
        assert_eq!(yarn_mscale(0.5, 1.0), 1.0);
        for (factor, mscale, golden) in
            [(40.0, 0.707, 1.26080), (40.0, 1.0, 1.36889), (32.0, 1.0, 1.34657), (64.0, 1.0, 1.41589)]
        {
            assert!((yarn_mscale(factor, mscale) - golden).abs() < 5e-6, "{factor} {mscale}");
        }
    }
}
