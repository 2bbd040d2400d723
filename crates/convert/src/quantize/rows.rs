//! Quantizing rows by the instructions of this CPU: the searches of `latent_quant`, compiled for AVX2. The compiler never contracts a multiplication and an
//! addition, so the bytes are the same.

use latent_quant::{QuantError, quantizers};
use latent_types::TensorType;

type Importance<'a> = Option<&'a [f32]>;

/// Whether a row was quantized.
type QuantizeRowFn = fn(&[f32], Importance<'_>, &mut [u8]) -> bool;

/// A function compiled for AVX2, to be called where the CPU has it; else it returns false.
macro_rules! avx2 {
    ($quantizer:ident) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2(numbers: &[f32], importance: Importance<'_>, out: &mut [u8]) {
            quantizers::$quantizer(numbers, importance, out);
        }

        #[allow(unsafe_code, reason = "a call of a function for an ISA that the CPU has")]
        fn run(numbers: &[f32], importance: Importance<'_>, out: &mut [u8]) -> bool {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has every feature that the function is compiled for.
                unsafe { avx2(numbers, importance, out) };
                return true;
            }
            let _ = (numbers, importance, out);
            false
        }
        run
    }};
}

/// [`latent_quant::quantize`], and the same bytes, by the instructions of this CPU.
pub fn quantize_row(
    ty: TensorType,
    numbers: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    latent_quant::check_quantize(ty, numbers, importance, out)?;
    let run: QuantizeRowFn = match ty {
        TensorType::Q4_0 => avx2!(q4_0),
        TensorType::Q4_1 => avx2!(q4_1),
        TensorType::Q5_0 => avx2!(q5_0),
        TensorType::Q5_1 => avx2!(q5_1),
        TensorType::Q1_0 => avx2!(q1_0),
        TensorType::Q2_0 => avx2!(q2_0),
        TensorType::Q2_K => avx2!(q2_k),
        TensorType::Q3_K => avx2!(q3_k),
        TensorType::Q4_K => avx2!(q4_k),
        TensorType::Q5_K => avx2!(q5_k),
        TensorType::Q6_K => avx2!(q6_k),
        TensorType::IQ1_S => avx2!(iq1_s),
        TensorType::IQ1_M => avx2!(iq1_m),
        TensorType::IQ2_XXS => avx2!(iq2_xxs),
        TensorType::IQ2_XS => avx2!(iq2_xs),
        TensorType::IQ2_S => avx2!(iq2_s),
        TensorType::IQ3_XXS => avx2!(iq3_xxs),
        TensorType::IQ3_S => avx2!(iq3_s),
        TensorType::IQ4_NL => avx2!(iq4_nl),
        TensorType::IQ4_XS => avx2!(iq4_xs),
        TensorType::MXFP4 => avx2!(mxfp4),
        TensorType::NVFP4 => avx2!(nvfp4),
        TensorType::TQ1_0 => avx2!(tq1_0),
        TensorType::TQ2_0 => avx2!(tq2_0),
        _ => |_, _, _| false,
    };
    if run(numbers, importance, out) { Ok(()) } else { latent_quant::quantize(ty, numbers, importance, out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_do_not_change_a_byte() {
        let numbers: Vec<f32> = (0..512u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0)
            .map(|v| v * v * v)
            .collect();
        let importance: Vec<f32> = (0..512).map(|i| 1.0 + (i % 7) as f32).collect();
        for ty in TensorType::all().filter(|ty| latent_quant::can_quantize(*ty)) {
            let bytes = ty.row_bytes(512).unwrap();
            for importance in [None, Some(&importance[..])] {
                let (mut here, mut portable) = (vec![0; bytes], vec![1; bytes]);
                quantize_row(ty, &numbers, importance, &mut here).unwrap();
                latent_quant::quantize(ty, &numbers, importance, &mut portable).unwrap();
                assert!(here == portable, "{ty} with importance: {}", importance.is_some());
            }
        }
    }
}
