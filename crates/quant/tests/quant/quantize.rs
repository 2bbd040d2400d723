//! Quantizers with a search: error bounds, the effect of importances, and numbers that a format
//! represents exactly.

use latent_types::TensorType::{self, *};

fn quantizable() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|ty| latent_quant::can_quantize(*ty))
}

fn round_trip(ty: TensorType, numbers: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut bytes = vec![0x55; ty.row_bytes(numbers.len()).expect("whole blocks")];
    latent_quant::quantize(ty, numbers, importance, &mut bytes).expect("quantizes");
    let mut back = vec![f32::NAN; numbers.len()];
    latent_quant::decode(ty, &bytes, &mut back).expect("decodes");
    back
}

/// √(Σ w·(a − b)² / Σ w·a²).
fn error(numbers: &[f32], back: &[f32], weight: impl Fn(usize) -> f32) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for (i, (a, b)) in numbers.iter().zip(back).enumerate() {
        off += f64::from(weight(i)) * f64::from(a - b).powi(2);
        all += f64::from(weight(i)) * f64::from(*a).powi(2);
    }
    (off / all).sqrt()
}

/// Sums of twelve uniform numbers.
fn normal_numbers(n: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// The data and bounds of llama.cpp's test-quantize-fns; it has none for IQ1.
#[test]
fn every_format_meets_the_error_bounds_of_the_field() {
    for ty in quantizable() {
        let data: Vec<f32> = (0..4096).map(|i| 0.1 + 2.0 * (i as f32).cos()).collect();
        let squares: f32 = data.iter().zip(round_trip(ty, &data, None)).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = squares.sqrt() / 4096.0;
        let bound = match ty {
            Q1_0 => 0.02,
            Q2_0 | TQ1_0 | TQ2_0 | IQ1_S | IQ1_M => 0.01,
            Q2_K | IQ2_XXS | IQ2_XS | IQ2_S => 0.0075,
            IQ3_XXS => 0.005,
            Q3_K | IQ3_S => 0.004,
            NVFP4 => 0.003,
            _ => 0.002,
        };
        assert!(error < bound, "{ty}: {error} ≥ {bound}");
    }
}

/// Relative errors are at most 1.02 times those of ggml's quantizers on normal numbers with
/// log-normal importances, σ = 1 (docs/quantising.md).
#[test]
fn weighted_errors_are_not_above_those_of_the_field() {
    let numbers = normal_numbers(64 * 1024);
    let columns: Vec<f32> = normal_numbers(1024).iter().map(|v| v.exp()).collect();
    let importance: Vec<f32> = columns.iter().copied().cycle().take(numbers.len()).collect();
    let bounds = [
        (Q4_0, 0.07803),
        (Q4_1, 0.06454),
        (Q5_0, 0.03876),
        (Q5_1, 0.03132),
        (Q2_K, 0.23979),
        (Q3_K, 0.13534),
        (Q4_K, 0.06556),
        (Q5_K, 0.03333),
        (Q6_K, 0.01635),
        (IQ4_NL, 0.07096),
        (IQ4_XS, 0.07171),
        (IQ3_S, 0.12109),
        (IQ3_XXS, 0.15517),
        (IQ2_S, 0.22767),
        (IQ2_XS, 0.26273),
        (IQ2_XXS, 0.30097),
        (IQ1_M, 0.3952),
        (IQ1_S, 0.44489),
        (MXFP4, 0.11395),
        (NVFP4, 0.1033),
    ];
    for (ty, field) in bounds {
        let found = error(&numbers, &round_trip(ty, &numbers, Some(&importance)), |i| importance[i]);
        assert!(found < field * 1.02, "{ty}: {found}, the field: {field}");
    }
}

#[test]
fn importances_reduce_the_error_of_important_columns() {
    let numbers = normal_numbers(16 * 1024);
    let importance: Vec<f32> = (0..numbers.len()).map(|i| if i % 4 == 0 { 20.0 } else { 1.0 }).collect();
    // Formats without a search, or whose quants importances cannot change.
    let fixed = [F32, F16, BF16, F8_E4M3, Q8_0, Q8_K];
    for ty in quantizable().filter(|ty| !fixed.contains(ty)) {
        let important = |back: Vec<f32>| error(&numbers, &back, |i| f32::from(u8::from(i % 4 == 0)));
        let (with, without) = (
            important(round_trip(ty, &numbers, Some(&importance))),
            important(round_trip(ty, &numbers, None)),
        );
        assert!(with < without, "{ty}: {with} ≥ {without}");
    }
}

/// Models trained in four bits or three values must be stored without loss.
#[test]
fn representable_numbers_round_trip_exactly() {
    for (ty, levels, scale) in [
        (Q1_0, &[-1.0, 1.0][..], 0.37109375),
        (Q2_0, &[-1.0, 0.0, 1.0, 2.0], 0.37109375),
        (TQ1_0, &[-1.0, 0.0, 1.0], 0.37109375),
        (TQ2_0, &[-1.0, 0.0, 1.0], 0.37109375),
        (MXFP4, &[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -4.0, -6.0], 0.125),
        (Q4_0, &[-8.0, -7.0, -3.0, 0.0, 1.0, 5.0, 7.0], 0.0078125),
        (Q8_0, &[-127.0, -31.0, 0.0, 1.0, 64.0, 127.0], 0.0078125),
    ] {
        let numbers: Vec<f32> = (0..512).map(|i| scale * levels[(i * 5 + i / 31) % levels.len()]).collect();
        assert!(round_trip(ty, &numbers, None) == numbers, "{ty}");
        let importance: Vec<f32> = (0..512).map(|i| 0.5 + (i % 5) as f32).collect();
        assert!(round_trip(ty, &numbers, Some(&importance)) == numbers, "{ty} with importances");
    }
}

#[test]
fn special_values_do_not_panic_and_zeros_round_trip() {
    for ty in quantizable() {
        for value in [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, -1e38, 1e30] {
            for importance in [None, Some(&[0.0; 256][..]), Some(&[f32::MAX; 256])] {
                round_trip(ty, &[value; 256], importance);
                let mut one = [0.5; 256];
                one[77] = value;
                round_trip(ty, &one, importance);
            }
        }
        assert!(round_trip(ty, &[0.0; 256], None).iter().all(|v| v.abs() < 1e-6), "{ty}");
    }
}

#[test]
fn unsupported_types_and_wrong_lengths_are_refused() {
    let mut out = [0; 18];
    assert!(latent_quant::quantize(Q4_0, &[0.0; 32], Some(&[1.0; 31]), &mut out).is_err());
    assert!(latent_quant::quantize(Q4_0, &[0.0; 31], None, &mut out).is_err());
    assert!(latent_quant::quantize(I32, &[0.0; 1], None, &mut out[..4]).is_err());
}
