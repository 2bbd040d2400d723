//! Weight formats: scalar, exact encoders and decoders, the reference for every kernel.
//!
//! * [`decode`], [`encode`]: dequantize and quantize whole blocks. [`decoder`]: the decoding
//!   function itself, unchecked, for hot loops.
//! * [`quantize`]: quantizes with the format's search, weighted by importances, for model files.
//!   Also writes IQ1 to IQ3 and TQ.
//! * [`gptq`]: rounds rows such that later columns compensate the errors of earlier ones.
//! * [`Statistics`]: ranges, moments and outlier scales of a tensor.
//! * [`not_finite`]: counts NaN and infinities without dequantizing. [`overflow`]: finds numbers
//!   that are too large for a format.
//! * [`can_decode`], [`can_encode`], [`can_quantize`]: which formats are supported.
//! * [`k_scales`]: the packed scales of K-quants.
//! * [`tiles`]: sixteen weight rows interleaved for SIMD, and back.
//! * [`e2m1`], [`f8_e4m3`], [`grids`], [`iq4_nl`], [`iq_signs`], [`mxfp4`], [`nvfp4`]: value tables
//!   and scales of the other formats.
//!
//! Each format has its own file with the functions for one block, whose layout is drawn at the top:
//! a `│` is at the byte offset above it, `d`, `m` and `dmin` are f16, and `a | b « 4` is a byte
//! with `a` in its low bits and `b` four bits higher.
//!
//! Encoders take any float without a panic: see [`encode`] for NaN and infinity.
//!
//! ```
//! use latent_types::TensorType;
//! let numbers: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
//! let mut bytes = [0; 34];
//! latent_quant::encode(TensorType::Q8_0, &numbers, &mut bytes)?;
//! let mut back = [0.0; 32];
//! latent_quant::decode(TensorType::Q8_0, &bytes, &mut back)?;
//! assert!(numbers.iter().zip(back).all(|(a, b)| (a - b).abs() < 0.07));
//! # Ok::<(), latent_quant::QuantError>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
pub mod e2m1;
mod error;
pub mod f8_e4m3;
mod finite;
pub mod gptq;
pub mod grids;
mod iq1_m;
pub mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
pub mod iq4_nl;
mod iq4_xs;
pub mod iq_signs;
pub mod k_scales;
pub mod mxfp4;
pub mod nvfp4;
mod plain;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_k;
pub mod quantizers;
mod search;
mod statistics;
pub mod tiles;
mod tq1_0;
mod tq2_0;

pub use error::QuantError;
pub use finite::{not_finite, overflow};
pub use statistics::Statistics;

use latent_types::TensorType;

/// Dequantizes whole blocks. If the lengths disagree, only the blocks of the shorter slice are
/// decoded.
pub type DecodeFn = fn(&[u8], &mut [f32]);

/// Quantizes whole blocks, likewise limited to the shorter slice, with an importance per weight.
pub type QuantizeFn = fn(&[f32], Option<&[f32]>, &mut [u8]);

/// Calls a macro with the list of block formats: each type, and the module with `decode` and
/// `search` of one of its blocks.
// One list for decoders, quantizers and the copies that other crates compile for an ISA, so that no
// format can be missing in one of them.
#[macro_export]
macro_rules! block_formats {
    ($then:ident) => {
        $then! {
            Q1_0 q1_0, Q2_0 q2_0, Q4_0 q4_0, Q4_1 q4_1, Q5_0 q5_0, Q5_1 q5_1, Q8_0 q8_0,
            Q2_K q2_k, Q3_K q3_k, Q4_K q4_k, Q5_K q5_k, Q6_K q6_k, Q8_K q8_k,
            IQ1_S iq1_s, IQ1_M iq1_m, IQ2_XXS iq2_xxs, IQ2_XS iq2_xs, IQ2_S iq2_s, IQ3_XXS iq3_xxs, IQ3_S iq3_s,
            IQ4_NL iq4_nl, IQ4_XS iq4_xs, MXFP4 mxfp4, NVFP4 nvfp4, TQ1_0 tq1_0, TQ2_0 tq2_0
        }
    };
}

/// The function that dequantizes `ty`.
pub fn decoder(ty: TensorType) -> Option<DecodeFn> {
    macro_rules! of_type {
        ($($format_type:ident $format:ident),*) => {
            match ty {
                TensorType::F32 => plain::decode_f32,
                TensorType::F16 => plain::decode_f16,
                TensorType::BF16 => plain::decode_bf16,
                TensorType::F8_E4M3 => f8_e4m3::decode,
                $(TensorType::$format_type => |bytes, out| blocks::decode_blocks(bytes, out, $format::decode),)*
                _ => return None,
            }
        };
    }
    Some(block_formats!(of_type))
}

fn quantizer(ty: TensorType) -> Option<QuantizeFn> {
    macro_rules! of_type {
        ($($format_type:ident $format:ident),*) => {
            match ty {
                TensorType::F32 => |x, _, out| plain::encode_f32(x, out),
                TensorType::F16 => |x, _, out| plain::encode_f16(x, out),
                TensorType::BF16 => |x, _, out| plain::encode_bf16(x, out),
                TensorType::F8_E4M3 => |x, _, out| f8_e4m3::encode(x, out),
                $(TensorType::$format_type => quantizers::$format,)*
                _ => return None,
            }
        };
    }
    Some(block_formats!(of_type))
}

/// Encoders with the same bits as the Python package gguf. For other types, the search without
/// importances.
fn encoder(ty: TensorType) -> Option<QuantizeFn> {
    use TensorType::*;
    Some(match ty {
        Q4_0 => |x, w, out| blocks::encode_blocks(x, w, out, q4_0::encode),
        Q4_1 => |x, w, out| blocks::encode_blocks(x, w, out, q4_1::encode),
        Q5_0 => |x, w, out| blocks::encode_blocks(x, w, out, q5_0::encode),
        Q5_1 => |x, w, out| blocks::encode_blocks(x, w, out, q5_1::encode),
        MXFP4 => |x, w, out| blocks::encode_blocks(x, w, out, mxfp4::encode),
        // Only `quantize` writes these.
        Q1_0 | Q2_0 | TQ1_0 | TQ2_0 | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S => {
            return None;
        }
        _ => return quantizer(ty),
    })
}

/// Whether `ty` can be decoded.
pub fn can_decode(ty: TensorType) -> bool {
    decoder(ty).is_some()
}

/// Whether `ty` can be encoded.
pub fn can_encode(ty: TensorType) -> bool {
    encoder(ty).is_some()
}

/// Whether `ty` can be written by [`quantize`].
pub fn can_quantize(ty: TensorType) -> bool {
    quantizer(ty).is_some()
}

/// The types that can be encoded.
pub fn encodable() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|ty| can_encode(*ty))
}

fn check(ty: TensorType, bytes: usize, numbers: usize) -> Result<(), QuantError> {
    // `row_bytes` is `None` unless the numbers are whole blocks.
    if ty.row_bytes(numbers) == Some(bytes) { Ok(()) } else { Err(QuantError::Length { ty, bytes, numbers }) }
}

/// Dequantizes whole blocks.
pub fn decode(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let decode = decoder(ty).ok_or(QuantError::NotDecodable(ty))?;
    // The functions themselves silently stop at the shorter slice.
    check(ty, bytes.len(), out.len())?;
    decode(bytes, out);
    Ok(())
}

/// Quantizes whole blocks, deterministically.
///
/// NaN and infinity: F32, F16 and BF16 keep them; F8_E4M3 keeps NaN and turns infinity into ±448.
/// In a block format they affect only their own block, whose weights dequantize to unspecified
/// values, often NaN or 0.
pub fn encode(ty: TensorType, numbers: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode = encoder(ty).ok_or(QuantError::NotEncodable(ty))?;
    check(ty, out.len(), numbers.len())?;
    encode(numbers, None, out);
    Ok(())
}

/// Quantizes whole blocks with the lowest error that the format's search finds, deterministically.
/// Errors are weighted by `importance`, one non-negative value per weight: the mean square of the
/// activations that the weight is multiplied by. NaN and infinity as for [`encode`].
///
/// # Errors
/// When the type cannot be quantized to, or lengths disagree.
pub fn quantize(
    ty: TensorType,
    numbers: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let quantize = quantizer(ty).ok_or(QuantError::NotEncodable(ty))?;
    check_quantize(ty, numbers, importance, out)?;
    quantize(numbers, importance, out);
    Ok(())
}

/// Checks the arguments of [`quantize`].
pub fn check_quantize(
    ty: TensorType,
    numbers: &[f32],
    importance: Option<&[f32]>,
    out: &[u8],
) -> Result<(), QuantError> {
    if !can_quantize(ty) {
        return Err(QuantError::NotEncodable(ty));
    }
    check(ty, out.len(), numbers.len())?;
    match importance {
        Some(importance) if importance.len() != numbers.len() => {
            Err(QuantError::Importance { importance: importance.len(), numbers: numbers.len() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data and bounds of llama.cpp's test-quantize-fns.
    #[test]
    fn encoding_meets_the_error_bounds_of_the_field() {
        for ty in encodable() {
            let data: Vec<f32> = (0..4096).map(|i| 0.1 + 2.0 * (i as f32).cos()).collect();
            let mut bytes = vec![0; ty.row_bytes(4096).unwrap()];
            encode(ty, &data, &mut bytes).unwrap();
            let mut back = vec![0.0; 4096];
            decode(ty, &bytes, &mut back).unwrap();
            let squares: f32 = data.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
            let error = squares.sqrt() / 4096.0;
            let bound = match ty {
                TensorType::Q2_K => 0.0075,
                TensorType::Q3_K => 0.0040,
                TensorType::NVFP4 => 0.0030,
                _ => 0.002,
            };
            assert!(error < bound, "{ty}: {error} ≥ {bound}");
        }
    }

    #[test]
    fn lengths_and_types_are_checked() {
        assert!(decode(TensorType::Q4_0, &[0; 17], &mut [0.0; 32]).is_err());
        assert!(decode(TensorType::I32, &[0; 4], &mut [0.0; 1]).unwrap_err().to_string().contains("I32"));
        assert!(
            encode(TensorType::IQ1_S, &[0.0; 256], &mut [0; 50]).unwrap_err().to_string().contains("Q4_K")
        );
    }

    #[test]
    fn special_values_do_not_panic() {
        for ty in encodable() {
            for value in [0.0, 1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, -1e38] {
                let mut bytes = vec![0; ty.row_bytes(256).unwrap()];
                encode(ty, &[value; 256], &mut bytes).unwrap();
                decode(ty, &bytes, &mut [0.0; 256]).unwrap();
            }
        }
    }
}
