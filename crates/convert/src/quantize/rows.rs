//! Row quantization with the instructions of this CPU: the searches of `latent_quant`, compiled for
//! AVX2. Rust never contracts a multiplication and an addition to an FMA, so the bytes are the
//! same.

use latent_quant::QuantError;
use latent_quant::gptq::{self, GptqRows, HessianFactor};
use latent_types::TensorType;

type Importance<'a> = Option<&'a [f32]>;

type QuantizeRowFn = fn(&[f32], Importance<'_>, &mut [u8]) -> bool;

/// Compiles a quantizer for AVX2. The result returns false if the CPU lacks it.
macro_rules! avx2 {
    ($quantizer:ident) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2(numbers: &[f32], importance: Importance<'_>, out: &mut [u8]) {
            latent_quant::quantizers::$quantizer(numbers, importance, out);
        }

        #[allow(unsafe_code, reason = "a call of a function for an ISA that the CPU has")]
        fn run(numbers: &[f32], importance: Importance<'_>, out: &mut [u8]) -> bool {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has every feature that the function is compiled for.
                unsafe { avx2(numbers, importance, out) };
                return true;
            }
            // Only builds for other architectures leave the arguments unused.
            let _ = (numbers, importance, out);
            false
        }
        run
    }};
}

/// [`latent_quant::quantize`] with the instructions of this CPU. The bytes are the same.
pub fn quantize_row(
    ty: TensorType,
    numbers: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    latent_quant::check_quantize(ty, numbers, importance, out)?;
    macro_rules! of_type {
        ($($format_type:ident $format:ident),*) => {
            match ty {
                $(TensorType::$format_type => avx2!($format),)*
                _ => |_, _, _| false,
            }
        };
    }
    let run: QuantizeRowFn = latent_quant::block_formats!(of_type);
    if run(numbers, importance, out) { Ok(()) } else { latent_quant::quantize(ty, numbers, importance, out) }
}

/// Compiles a GPTQ rounding function for AVX2, with the portable one as fallback.
macro_rules! rounding_avx2 {
    ($format:ident) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
            gptq::$format(factor, rows, memory, out);
        }

        #[allow(unsafe_code, reason = "a call of a function for an ISA that the CPU has")]
        fn run(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has every feature that the function is compiled for.
                unsafe { avx2(factor, rows, memory, out) };
                return;
            }
            gptq::$format(factor, rows, memory, out);
        }
        run
    }};
}

/// Rounds rows of a matrix by the factor of its Hessian, with the instructions of this CPU.
///
/// # Errors
/// The type has no GPTQ, or lengths do not match the factor.
pub(crate) fn round_rows(
    ty: TensorType,
    factor: &HessianFactor,
    rows: &[f32],
    memory: &mut GptqRows,
    out: &mut [u8],
) -> Result<(), QuantError> {
    macro_rules! of_type {
        ($($format_type:ident $format:ident $group:literal),*) => {
            match ty {
                $(TensorType::$format_type => rounding_avx2!($format),)*
                _ => return Err(QuantError::NotEncodable(ty)),
            }
        };
    }
    let run: gptq::GptqFormat = latent_quant::gptq_formats!(of_type);
    gptq::check_rows(ty, factor, rows, out)?;
    run(factor, rows, memory, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_do_not_change_a_rounded_byte() {
        let columns = 512;
        let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
        let triangle: Vec<f32> = (0..columns)
            .flat_map(|i| (0..=i).map(move |j| if i == j { 60.0 } else { 0.1 * number(i * 7 + j) }))
            .collect();
        let rows: Vec<f32> = (0..3 * columns).map(|i| number(i * 3)).collect();
        for ty in gptq::gptq_types() {
            let group = gptq::group_len(ty).unwrap();
            let options = gptq::GptqOptions { damping: 0.5, act_order: true };
            let factor = HessianFactor::new(&triangle, columns, group, options).unwrap();
            let bytes = 3 * ty.row_bytes(columns).unwrap();
            let (mut here, mut portable) = (vec![0; bytes], vec![1; bytes]);
            // Different bytes at first, so that a byte that is not written is a difference.
            round_rows(ty, &factor, &rows, &mut GptqRows::default(), &mut here).unwrap();
            gptq::quantize_rows(ty, &factor, &rows, &mut portable).unwrap();
            assert!(here == portable, "{ty}");
        }
    }

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
                // Different bytes at first, so that a byte that is not written is a difference.
                let (mut here, mut portable) = (vec![0; bytes], vec![1; bytes]);
                quantize_row(ty, &numbers, importance, &mut here).unwrap();
                latent_quant::quantize(ty, &numbers, importance, &mut portable).unwrap();
                assert!(here == portable, "{ty} with importance: {}", importance.is_some());
            }
        }
    }
}
