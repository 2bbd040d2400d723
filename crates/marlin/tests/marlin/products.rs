//! Products: every kernel, instruction set, type of weight, scale and input, at odd sizes.

use crate::truth::{KINDS, OwnedWeight, Random, errors, largest, product, to_bf16, to_f16, widened};
use latent_marlin::{Activations, Error, Input, Kernel, Marlin, Options, Plan, QuantType, Shape};
use latent_types::Tier;

/// Largest error of a result, relative to the sum of the magnitudes of its terms. Kernels sum in
/// f32: first each group, then the groups multiplied by their scales.
const BOUND: f64 = 1e-6;

/// Like `BOUND`, for inputs that are rounded to 16-bit integers. They are off by up to half of
/// 1/32639 of the largest of 32 inputs, so here that largest input is the magnitude of a term.
const INT16_BOUND: f64 = 0.5 / 32_639.0 + BOUND;

/// Normalized mean square error against f64.
const NMSE: f64 = 1e-7;

/// M, K, N and group size, with partial tiles in every dimension, groups that end inside a word,
/// and one group, row, column or word.
const SHAPES: [(usize, usize, usize, usize); 14] = [
    (1, 8, 1, 8),
    (1, 64, 16, 32),
    (1, 512, 37, 32),
    (2, 96, 33, 4),
    (3, 120, 50, 12),
    (4, 256, 64, 128),
    (5, 136, 15, 136),
    (7, 272, 97, 16),
    (8, 320, 48, 64),
    (9, 1088, 65, 32),
    (16, 288, 96, 96),
    (17, 40, 17, 1),
    (70, 584, 113, 8),
    (130, 264, 49, 24),
];

fn tiers() -> Vec<Tier> {
    let best = latent_marlin_tiers();
    [Tier::Portable, Tier::Avx2, Tier::Avx512].into_iter().filter(|tier| *tier <= best).collect()
}

fn latent_marlin_tiers() -> Tier {
    latent_kernels::features().tier()
}

#[test]
fn every_kernel_gives_the_products_of_the_decoded_weights() {
    let random = &mut Random(1);
    let mut marlin = Marlin::new(3).unwrap();
    let mut ran = 0;
    for (m, k, n, group) in SHAPES {
        let shape = Shape { k, n, group };
        for quant in QuantType::ALL {
            for kind in KINDS {
                let weight = OwnedWeight::random(quant, kind, shape, random);
                let x = random.numbers(m * k);
                let (halves, bf16s) = (to_f16(&x), to_bf16(&x));
                for input in [Input::F32(&x), Input::F16(&halves), Input::Bf16(&bf16s)] {
                    let x = widened(input);
                    let truth = product(&weight, &x, &x, m);
                    let by_int16 = product(&weight, &x, &largest(&x, k), m);
                    for tier in tiers() {
                        for kernel in Kernel::ALL {
                            let slices = (kernel == Kernel::Striped).then_some((k / 8).min(3));
                            let (kernel, tier) = (Some(kernel), Some(tier));
                            let options = Options { kernel, tier, slices, ..Options::default() };
                            let mut y = vec![f32::NAN; m * n];
                            marlin.multiply_with(&options, &weight.view(), input, m, &mut y).unwrap();
                            let plan =
                                Plan::new(&options, shape, m, matches!(input, Input::Bf16(_))).unwrap();
                            let name = plan.chosen().name;
                            let (truth, bound) = match name.ends_with("_by_int16") {
                                true => (&by_int16, INT16_BOUND),
                                false => (&truth, BOUND),
                            };
                            let (worst, nmse) = errors(&y, truth);
                            let case = format!("{name} {} {kind} {m}x{k}x{n} g{group}", quant.name());
                            assert!(worst <= bound, "{case}: error {worst:e}");
                            // Among so few results, all may be small differences of large terms.
                            assert!(m * n < 64 || nmse <= NMSE, "{case}: NMSE {nmse:e}");
                            ran += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(ran >= 14 * 27 * 3, "only {ran}");
}

#[test]
fn inputs_that_are_rounded_to_bf16_lose_no_more_than_that() {
    let (m, shape) = (6, Shape { k: 256, n: 64, group: 32 });
    let random = &mut Random(5);
    let weight = OwnedWeight::random(QuantType::Fp4, "f16", shape, random);
    let x = random.numbers(m * shape.k);
    let wide = widened(Input::F32(&x));
    let truth = product(&weight, &wide, &wide, m);
    let mut marlin = Marlin::new(1).unwrap();
    for kernel in Kernel::ALL {
        let options = Options { kernel: Some(kernel), activations: Activations::Bf16, ..Options::default() };
        let mut y = vec![0.0; m * shape.n];
        marlin.multiply_with(&options, &weight.view(), Input::F32(&x), m, &mut y).unwrap();
        // bf16 has eight significant bits: an input is off by up to half a unit in the last.
        assert!(errors(&y, &truth).0 < 1.0 / 256.0, "{kernel:?}");
    }
}

#[test]
fn inputs_are_rounded_to_eight_bits_only_where_that_is_asked_for() {
    let random = &mut Random(6);
    for (m, k, n, group) in [(1, 512, 37, 32), (5, 136, 48, 136), (40, 320, 65, 16)] {
        let shape = Shape { k, n, group };
        for quant in QuantType::ALL {
            let weight = OwnedWeight::random(quant, "f16", shape, random);
            let x = random.numbers(m * k);
            let wide = widened(Input::F32(&x));
            let truth = product(&weight, &wide, &largest(&wide, k), m);
            for tier in tiers() {
                for kernel in Kernel::ALL {
                    let (kernel, tier, activations) = (Some(kernel), Some(tier), Activations::Int8);
                    let options = Options { kernel, tier, activations, ..Options::default() };
                    let plan = Plan::new(&options, shape, m, false).unwrap();
                    assert!(plan.chosen().name.ends_with("_a8"), "{}", plan.chosen().name);
                    let mut y = vec![f32::NAN; m * n];
                    Marlin::new(2)
                        .unwrap()
                        .multiply_with(&options, &weight.view(), Input::F32(&x), m, &mut y)
                        .unwrap();
                    let (worst, _) = errors(&y, &truth);
                    assert!(worst < 0.5 / 127.0 + BOUND, "{}: {worst:e}", plan.chosen().name);
                    let exact =
                        Plan::new(&Options { activations: Activations::AsGiven, ..options }, shape, m, true);
                    assert!(!exact.unwrap().chosen().name.ends_with("_a8"));
                }
            }
        }
    }
}

#[test]
fn results_have_the_same_bits_for_any_number_of_threads() {
    let random = &mut Random(2);
    for (m, k, n, group) in [(1, 2048, 300, 32), (5, 512, 1000, 64), (80, 256, 500, 32), (33, 4096, 64, 128)]
    {
        let shape = Shape { k, n, group };
        let weight = OwnedWeight::random(QuantType::Int4, "f16", shape, random);
        let x = random.numbers(m * k);
        let bf16s = to_bf16(&x);
        for input in [Input::F32(&x), Input::Bf16(&bf16s)] {
            for kernel in [None, Some(Kernel::Gemm), Some(Kernel::Fused), Some(Kernel::Striped)] {
                let options = Options { kernel, ..Options::default() };
                let bits = |threads| {
                    let mut y = vec![f32::NAN; m * n];
                    let mut marlin = Marlin::new(threads).unwrap();
                    marlin.multiply_with(&options, &weight.view(), input, m, &mut y).unwrap();
                    y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let one = bits(1);
                assert!(bits(2) == one && bits(4) == one, "{kernel:?} {m} {shape:?}");
            }
        }
    }
}

#[test]
fn shapes_choose_the_kernel_and_a_forced_one_runs() {
    let name = |m, k, n| Plan::new(&Options::default(), Shape { k, n, group: 32 }, m, false).unwrap();
    assert_eq!(name(1, 4096, 4096).kernel, Kernel::Fused);
    assert_eq!(name(512, 4096, 4096).kernel, Kernel::Gemm);
    // One tile of results, and a long K.
    let narrow = name(1, 16384, 64);
    assert_eq!((narrow.kernel, narrow.slices), (Kernel::Striped, 16));
    let forced = Options { kernel: Some(Kernel::Gemm), tier: Some(Tier::Portable), ..Options::default() };
    let plan = Plan::new(&forced, Shape { k: 64, n: 64, group: 32 }, 64, true).unwrap();
    assert_eq!(plan.chosen().name, "portable_w4_gemm_f32");
}

#[test]
fn more_slices_than_words_are_refused_and_as_many_are_not() {
    let shape = Shape { k: 24, n: 20, group: 8 };
    let weight = OwnedWeight::random(QuantType::Fp4, "e8m0", shape, &mut Random(3));
    let x = Random(4).numbers(2 * 24);
    let wide = widened(Input::F32(&x));
    let truth = product(&weight, &wide, &largest(&wide, 24), 2);
    let mut marlin = Marlin::new(2).unwrap();
    let mut y = vec![0.0; 40];
    for slices in [1, 2, 3] {
        let options = Options { kernel: Some(Kernel::Striped), slices: Some(slices), ..Options::default() };
        marlin.multiply_with(&options, &weight.view(), Input::F32(&x), 2, &mut y).unwrap();
        assert!(errors(&y, &truth).0 < INT16_BOUND);
    }
    for slices in [0, 4] {
        let options = Options { kernel: Some(Kernel::Striped), slices: Some(slices), ..Options::default() };
        let refused = marlin.multiply_with(&options, &weight.view(), Input::F32(&x), 2, &mut y);
        assert!(matches!(refused, Err(Error::Slices { words: 3, .. })), "{refused:?}");
    }
}

#[test]
fn empty_products_are_empty_and_sums_of_nothing_are_zero() {
    let mut marlin = Marlin::new(2).unwrap();
    let none =
        OwnedWeight::random(QuantType::Int4Sym, "f16", Shape { k: 64, n: 0, group: 32 }, &mut Random(1));
    marlin.multiply(&none.view(), Input::F32(&[0.0; 64]), 1, &mut []).unwrap();
    let some =
        OwnedWeight::random(QuantType::Int4Sym, "f16", Shape { k: 64, n: 5, group: 32 }, &mut Random(1));
    marlin.multiply(&some.view(), Input::F32(&[]), 0, &mut []).unwrap();
    for kernel in Kernel::ALL {
        let empty =
            OwnedWeight::random(QuantType::Fp4, "f16", Shape { k: 0, n: 5, group: 8 }, &mut Random(1));
        let mut y = [f32::NAN; 10];
        let options = Options { kernel: Some(kernel), ..Options::default() };
        marlin.multiply_with(&options, &empty.view(), Input::F32(&[]), 2, &mut y).unwrap();
        assert_eq!(y, [0.0; 10], "{kernel:?}");
    }
}
