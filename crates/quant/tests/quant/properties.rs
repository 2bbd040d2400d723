//! Properties of encoding for any numbers: bounded error, determinism, and no panics.

use latent_types::TensorType::{self, *};
use proptest::prelude::*;

fn round_trip(ty: TensorType, numbers: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0x55; ty.row_bytes(numbers.len()).expect("whole blocks")];
    latent_quant::encode(ty, numbers, &mut bytes).expect("encodes");
    let mut back = vec![f32::NAN; numbers.len()];
    latent_quant::decode(ty, &bytes, &mut back).expect("decodes");
    back
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |m, v| m.max(v.abs()))
}

/// Maximum distance of a number from its decoded code, relative to the largest magnitude of its
/// block: half a step, or a whole step if the codes reach less far on one side, plus the rounding
/// of f16 scales and of sub-block scales.
fn max_error(ty: TensorType) -> f32 {
    match ty {
        F32 => 0.0,
        F16 => 1.0 / 2048.0,
        BF16 => 1.0 / 256.0,
        F8_E4M3 => 1.0 / 16.0,
        Q4_0 => 1.01 / 8.0,
        Q4_1 => 1.02 / 15.0,
        Q5_0 => 1.02 / 16.0,
        Q5_1 => 1.04 / 31.0,
        Q8_0 => 0.6 / 127.0,
        Q8_K => 1.01 / 127.0,
        Q2_K => 0.75,
        Q3_K => 0.40,
        Q4_K => 0.18,
        Q5_K => 0.10,
        Q6_K => 0.06,
        IQ4_NL | IQ4_XS => 0.22,
        MXFP4 => 0.26,
        NVFP4 => 0.25,
        other => panic!("no bound for {other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trip_errors_stay_below_their_formats_bound(
        shape in prop::collection::vec(-1.0f32..1.0, 256),
        size in -2.0f32..2.0,
        shift in -1.0f32..1.0,
    ) {
        let numbers: Vec<f32> = shape.iter().map(|v| (v + shift) * 10f32.powf(size)).collect();
        for ty in latent_quant::encodable() {
            let back = round_trip(ty, &numbers);
            for (x, y) in numbers.chunks(ty.block_len().max(16)).zip(back.chunks(ty.block_len().max(16))) {
                let allowed = max_error(ty) * largest(x) + 1e-7 * largest(x) + if ty == F8_E4M3 { 0.001 } else { 0.0 };
                for (a, b) in x.iter().zip(y) {
                    prop_assert!((a - b).abs() <= allowed, "{ty}: {a} became {b}, allowed {allowed}");
                }
            }
        }
    }

    #[test]
    fn any_bits_encode_without_a_panic_and_always_to_the_same_bytes(bits in prop::collection::vec(any::<u32>(), 256)) {
        let numbers: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
        for ty in latent_quant::encodable() {
            let size = ty.row_bytes(256).expect("whole blocks");
            let (mut first, mut second) = (vec![0; size], vec![0xFF; size]);
            latent_quant::encode(ty, &numbers, &mut first).expect("encodes");
            latent_quant::encode(ty, &numbers, &mut second).expect("encodes");
            prop_assert_eq!(first, second, "{}: depends on the buffer's old contents", ty);
        }
    }

    #[test]
    fn any_bytes_decode_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 1024)) {
        for ty in TensorType::all().filter(|ty| latent_quant::can_decode(*ty)) {
            let blocks = bytes.len() / ty.block_bytes();
            let mut out = vec![0.0; blocks * ty.block_len()];
            latent_quant::decode(ty, &bytes[..blocks * ty.block_bytes()], &mut out).expect("decodes");
        }
    }

    #[test]
    fn lengths_that_disagree_are_refused(bytes in 0usize..600, numbers in 0usize..600) {
        for ty in latent_quant::encodable() {
            let fits = ty.row_bytes(numbers) == Some(bytes);
            prop_assert_eq!(latent_quant::decode(ty, &vec![0; bytes], &mut vec![0.0; numbers]).is_ok(), fits);
            prop_assert_eq!(latent_quant::encode(ty, &vec![0.0; numbers], &mut vec![0; bytes]).is_ok(), fits);
        }
    }

    #[test]
    fn one_bad_number_affects_only_its_block(at in 0usize..256, bad in prop::sample::select(vec![f32::NAN, f32::INFINITY])) {
        let mut numbers: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
        for ty in latent_quant::encodable() {
            let expected = round_trip(ty, &numbers)[256..].to_vec();
            let old = std::mem::replace(&mut numbers[at], bad);
            prop_assert_eq!(&round_trip(ty, &numbers)[256..], &expected[..], "{}", ty);
            numbers[at] = old;
        }
    }
}

#[test]
fn zeros_round_trip_exactly() {
    for ty in latent_quant::encodable() {
        assert!(round_trip(ty, &[0.0; 256]).iter().all(|v| *v == 0.0), "{ty}");
    }
}

#[test]
fn constant_blocks_round_trip_within_four_percent() {
    for ty in latent_quant::encodable().filter(|ty| ![MXFP4, NVFP4].contains(ty)) {
        for value in [0.75f32, -3.0, 0.01] {
            for v in round_trip(ty, &[value; 256]) {
                assert!((v - value).abs() <= 0.04 * value.abs(), "{ty}: {value} became {v}");
            }
        }
    }
}

/// Sums of twelve uniform numbers: approximately normal, and the same on every machine.
fn normal_numbers(n: usize) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// Relative error on normal numbers, √(Σ(a−b)²/Σa²). The bounds are the errors of the current
/// searches plus 5 %, so that a worse search fails.
#[test]
fn searches_keep_their_quality_on_normal_numbers() {
    let numbers = normal_numbers(256 * 64);
    let bounds = [
        (Q2_K, 0.293),
        (Q3_K, 0.16),
        (Q4_K, 0.0752),
        (Q5_K, 0.0374),
        (Q6_K, 0.0185),
        (IQ4_NL, 0.0795),
        (IQ4_XS, 0.08),
        (MXFP4, 0.1217),
        (NVFP4, 0.0876),
        (Q4_0, 0.089),
        (Q8_0, 0.00555),
    ];
    for (ty, bound) in bounds {
        let back = round_trip(ty, &numbers);
        let off: f64 = numbers.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let all: f64 = numbers.iter().map(|a| f64::from(*a).powi(2)).sum();
        let error = (off / all).sqrt();
        assert!(error < bound, "{ty}: {error} ≥ {bound}");
    }
}
