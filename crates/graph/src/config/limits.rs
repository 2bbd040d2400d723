//! The largest hyper-parameters that a file may claim.
//!
//! They are several times the largest published values, and small enough that no product of
//! dimensions in a plan (experts · width · hidden, heads · head width · context, vocabulary ·
//! hidden, times an element's bytes) overflows 64 bits.
use std::ops::RangeInclusive;

/// Layers including MTP layers (also llama.cpp's limit).
pub(super) const LAYERS: RangeInclusive<usize> = 1..=512;
/// Routed experts per layer (also llama.cpp's limit; Kimi-K2 has 384).
pub(super) const EXPERTS: usize = 1024;
/// Shared experts of a layer.
pub(super) const SHARED_EXPERTS: usize = 64;
/// Query heads (DeepSeek-V3: 128).
pub(super) const HEADS: RangeInclusive<usize> = 1..=1024;
/// Width of each part of a head (nope, rope, value; GLM-4.7-Flash: 256).
pub(super) const HEAD_WIDTH: RangeInclusive<usize> = 1..=4096;
/// Width of the part whose key all heads share; 0 without one.
pub(super) const SHARED_KEY: RangeInclusive<usize> = 0..=4096;
/// Width of a query or key head, both parts.
pub(super) const WHOLE_HEAD: RangeInclusive<usize> = 2..=8192;
/// Tokens that a short convolution sees (published models: 4).
// One tap would have no past inputs, and the state no elements.
pub(super) const TAPS: RangeInclusive<usize> = 2..=16;
/// Lower bound of a log decay (published models: −5).
// exp(−60) is far below f32's precision relative to 1; a bound of 0 would mean no decay at all.
pub(super) const DECAY_BOUND: RangeInclusive<f64> = -60.0..=-1e-3;
/// Ranks of the low-rank projections (DeepSeek: 512 and 1536).
pub(super) const RANK: RangeInclusive<usize> = 1..=65_536;
/// Width of the residual stream (DeepSeek-V3: 7168).
pub(super) const HIDDEN: RangeInclusive<usize> = 1..=131_072;
/// Width of a feed-forward block.
pub(super) const INTERMEDIATE: usize = 1_048_576;
/// Tokens in the vocabulary (Kimi-K2: 163 840).
pub(super) const VOCABULARY: RangeInclusive<usize> = 1..=4_194_304;
/// Context lengths, in tokens.
pub(super) const CONTEXT: RangeInclusive<usize> = 1..=67_108_864;

/// Epsilon of RMSNorm.
// Above 0, so that a row of zeros is not a division by zero.
pub(super) const RMS_EPS: RangeInclusive<f64> = 1e-30..=1.0;
/// θ of the rotary embedding.
// Must exceed 1, or frequencies would not fall from pair to pair.
pub(super) const ROPE_BASE: RangeInclusive<f64> = 1.001..=1e15;
/// Factor by which a rope scaling extends the context.
pub(super) const ROPE_FACTOR: RangeInclusive<f64> = 1.0..=1e6;
/// One of LongRoPE's factors.
pub(super) const LONG_FACTOR: RangeInclusive<f64> = 1e-6..=1e6;
/// YaRN's β: rotations over the original context.
pub(super) const BETA: RangeInclusive<f64> = 1e-6..=1e6;
/// Weight of the original frequency in YaRN.
pub(super) const EXT_FACTOR: RangeInclusive<f64> = 0.0..=1.0;
/// YaRN's `mscale` and `mscale_all_dim`.
pub(super) const MSCALE: RangeInclusive<f64> = 0.0..=100.0;
/// Factor on cos and sin.
pub(super) const MAGNITUDE: RangeInclusive<f64> = 1e-3..=1e3;
/// Factor on the weights of the chosen experts (0 in a GGUF: none).
pub(super) const ROUTER_SCALE: RangeInclusive<f64> = 0.0..=1e6;
/// β of the attention temperature (0: none).
pub(super) const TEMPERATURE: RangeInclusive<f64> = 0.0..=1e3;
/// MiniCPM3's factors on embedding and residual stream.
pub(super) const MODEL_SCALE: RangeInclusive<f64> = 1e-6..=1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_product_of_dimensions_leaves_64_bits() {
        let max = |r: RangeInclusive<usize>| *r.end() as u128;
        // Elements of an expanded cache row and of a latent one.
        let row = 2 * max(HEADS) * 3 * max(HEAD_WIDTH) + max(RANK);
        let products = [
            EXPERTS as u128 * 2 * INTERMEDIATE as u128 * max(HIDDEN) * max(LAYERS),
            SHARED_EXPERTS as u128 * INTERMEDIATE as u128 * max(HIDDEN) * max(LAYERS),
            max(VOCABULARY) * max(HIDDEN),
            row * max(CONTEXT) * max(LAYERS) / 2,
            max(CONTEXT) * max(VOCABULARY),
            max(HEADS) * max(WHOLE_HEAD) * max(RANK) * max(LAYERS),
        ];
        for product in products {
            assert!(product * 4 <= u128::from(u64::MAX), "{product}");
        }
    }
}
