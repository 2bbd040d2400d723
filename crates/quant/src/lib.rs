//! Block formats of weights: what the bits mean. Scalar and exact: the source of truth for every kernel.
//!
//! * [`decode`], [`encode`]: whole blocks to numbers and back. [`decoder`]: the checked function once, for hot loops.
//! * [`can_decode`], [`can_encode`]: what is possible.
//! * [`k_scales`]: the packed scales of K-formats, for kernels that read them.
//!
//! ```
//! use base::TensorType;
//! let numbers: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
//! let mut bytes = [0; 34];
//! quant::encode(TensorType::Q8_0, &numbers, &mut bytes)?;
//! let mut back = [0.0; 32];
//! quant::decode(TensorType::Q8_0, &bytes, &mut back)?;
//! assert!(numbers.iter().zip(back).all(|(a, b)| (a - b).abs() < 0.07));
//! # Ok::<(), quant::QuantError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub mod f8_e4m3;
pub mod fp4;
mod grids;
mod iq;
pub mod iq4;
mod k_quants;
pub mod k_scales;
mod plain;
mod simple;
mod tq;

pub use error::QuantError;

use base::TensorType;

/// Decodes whole blocks. The caller has checked that bytes and numbers agree; fewer of either are decoded as far as they go.
pub type DecodeFn = fn(&[u8], &mut [f32]);

/// Encodes whole blocks, under the same condition.
type EncodeFn = fn(&[f32], &mut [u8]);

/// The function that decodes `ty`.
pub fn decoder(ty: TensorType) -> Option<DecodeFn> {
    Some(match ty {
        TensorType::F32 => plain::decode_f32,
        TensorType::F16 => plain::decode_f16,
        TensorType::BF16 => plain::decode_bf16,
        TensorType::F8_E4M3 => f8_e4m3::decode,
        TensorType::Q4_0 => simple::decode_q4_0,
        TensorType::Q4_1 => simple::decode_q4_1,
        TensorType::Q5_0 => simple::decode_q5_0,
        TensorType::Q5_1 => simple::decode_q5_1,
        TensorType::Q8_0 => simple::decode_q8_0,
        TensorType::Q2_K => k_quants::decode_q2_k,
        TensorType::Q3_K => k_quants::decode_q3_k,
        TensorType::Q4_K => k_quants::decode_q4_k,
        TensorType::Q5_K => k_quants::decode_q5_k,
        TensorType::Q6_K => k_quants::decode_q6_k,
        TensorType::Q8_K => k_quants::decode_q8_k,
        TensorType::IQ1_S => iq::decode_iq1_s,
        TensorType::IQ1_M => iq::decode_iq1_m,
        TensorType::IQ2_XXS => iq::decode_iq2_xxs,
        TensorType::IQ2_XS => iq::decode_iq2_xs,
        TensorType::IQ2_S => iq::decode_iq2_s,
        TensorType::IQ3_XXS => iq::decode_iq3_xxs,
        TensorType::IQ3_S => iq::decode_iq3_s,
        TensorType::IQ4_NL => iq4::decode_iq4_nl,
        TensorType::IQ4_XS => iq4::decode_iq4_xs,
        TensorType::TQ1_0 => tq::decode_tq1_0,
        TensorType::TQ2_0 => tq::decode_tq2_0,
        TensorType::MXFP4 => fp4::decode_mxfp4,
        TensorType::NVFP4 => fp4::decode_nvfp4,
        _ => return None,
    })
}

fn encoder(ty: TensorType) -> Option<EncodeFn> {
    Some(match ty {
        TensorType::F32 => plain::encode_f32,
        TensorType::F16 => plain::encode_f16,
        TensorType::BF16 => plain::encode_bf16,
        TensorType::F8_E4M3 => f8_e4m3::encode,
        TensorType::Q4_0 => simple::encode_q4_0,
        TensorType::Q4_1 => simple::encode_q4_1,
        TensorType::Q5_0 => simple::encode_q5_0,
        TensorType::Q5_1 => simple::encode_q5_1,
        TensorType::Q8_0 => simple::encode_q8_0,
        TensorType::Q2_K => k_quants::encode_q2_k,
        TensorType::Q3_K => k_quants::encode_q3_k,
        TensorType::Q4_K => k_quants::encode_q4_k,
        TensorType::Q5_K => k_quants::encode_q5_k,
        TensorType::Q6_K => k_quants::encode_q6_k,
        TensorType::Q8_K => k_quants::encode_q8_k,
        TensorType::IQ4_NL => iq4::encode_iq4_nl,
        TensorType::IQ4_XS => iq4::encode_iq4_xs,
        TensorType::MXFP4 => fp4::encode_mxfp4,
        TensorType::NVFP4 => fp4::encode_nvfp4,
        _ => return None,
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

/// The types that can be encoded.
pub fn encodable() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|ty| can_encode(*ty))
}

fn check(ty: TensorType, bytes: usize, numbers: usize) -> Result<(), QuantError> {
    if ty.row_bytes(numbers) == Some(bytes) { Ok(()) } else { Err(QuantError::Length { ty, bytes, numbers }) }
}

/// Decodes whole blocks.
///
/// # Errors
/// A type that cannot be decoded; lengths that do not agree.
pub fn decode(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let decode = decoder(ty).ok_or(QuantError::NotDecodable(ty))?;
    check(ty, bytes.len(), out.len())?;
    decode(bytes, out);
    Ok(())
}

/// Encodes whole blocks. The same numbers always give the same bytes.
///
/// # Errors
/// A type that cannot be encoded; lengths that do not agree.
pub fn encode(ty: TensorType, numbers: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode = encoder(ty).ok_or(QuantError::NotEncodable(ty))?;
    check(ty, out.len(), numbers.len())?;
    encode(numbers, out);
    Ok(())
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
    fn odd_numbers_never_panic() {
        for ty in encodable() {
            for value in [0.0, 1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, -1e38] {
                let mut bytes = vec![0; ty.row_bytes(256).unwrap()];
                encode(ty, &[value; 256], &mut bytes).unwrap();
                decode(ty, &bytes, &mut [0.0; 256]).unwrap();
            }
        }
    }
}
