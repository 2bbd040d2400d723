//! Refused arguments and their error messages.

use latent_marlin::half::f16;
use latent_marlin::{
    Activations, Error, Input, Kernel, Marlin, Options, QuantType, Scales, Shape, Weight, pack_fp4, pack_u4,
};
use latent_types::Tier;

const SHAPE: Shape = Shape { k: 64, n: 3, group: 32 };

fn refused<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error.to_string(),
    }
}

fn weight(quant: QuantType, shape: Shape, words: usize, scales: usize, zeros: Option<&[u8]>) -> String {
    let (words, scales) = (vec![0; words], vec![f16::ONE; scales]);
    refused(Weight::new(quant, shape, &words, Scales::F16(&scales), zeros).map(|_| ()))
}

#[test]
fn wrong_shapes_are_refused_with_their_numbers() {
    let fp4 = QuantType::Fp4;
    assert_eq!(
        weight(fp4, Shape { k: 60, n: 3, group: 30 }, 0, 0, None),
        "K is 60, which is not a multiple of 8: a word holds eight codes along K; pad the weight with zeros"
    );
    for group in [0, 48] {
        assert_eq!(
            weight(fp4, Shape { group, ..SHAPE }, 24, 6, None),
            format!(
                "K is 64, which is not a multiple of the group size {group}; use a divisor of K, or K itself"
            )
        );
    }
    assert_eq!(
        weight(fp4, SHAPE, 23, 6, None),
        "the packed weight [8, 3] has 24 elements, but 23 were given"
    );
    assert_eq!(weight(fp4, SHAPE, 24, 3, None), "the scales [2, 3] has 6 elements, but 3 were given");
    assert_eq!(
        weight(QuantType::Int4, SHAPE, 24, 6, Some(&[0; 5])),
        "the zero points [2, 3] has 6 elements, but 5 were given"
    );
    assert_eq!(
        weight(QuantType::Int4, SHAPE, 24, 6, Some(&[0, 16, 0, 0, 17, 0])),
        "the zero point of group 1 and column 1 is 17; it must be from 0 to 16"
    );
    assert_eq!(weight(QuantType::Int4, SHAPE, 24, 6, None), "int4 weights take zero points");
    assert_eq!(
        weight(QuantType::Int4Sym, SHAPE, 24, 6, Some(&[0; 6])),
        "int4_sym weights take no zero points"
    );
    let huge = Shape { k: 1 << 40, n: 1 << 40, group: 32 };
    assert!(weight(fp4, huge, 0, 0, None).contains("more elements than fit into memory"));
}

#[test]
fn wrong_operands_of_a_product_are_refused() {
    let packed = pack_fp4(&[1.0; 192], SHAPE).unwrap();
    let weight = packed.weight().unwrap();
    let mut marlin = Marlin::new(1).unwrap();
    let mut y = [0.0; 6];
    assert_eq!(
        refused(marlin.multiply(&weight, Input::F32(&[0.0; 127]), 2, &mut y)),
        "the input [2, 64] has 128 elements, but 127 were given"
    );
    assert_eq!(
        refused(marlin.multiply(&weight, Input::F32(&[0.0; 64]), 1, &mut y)),
        "the result [1, 3] has 3 elements, but 6 were given"
    );
    assert!(
        refused(marlin.multiply(&weight, Input::F32(&[]), usize::MAX, &mut [])).contains("more elements")
    );
    assert!(refused(marlin.dequantize(&weight, &mut [0.0; 191])).contains("has 192 elements, but 191"));
    let options = Options { kernel: Some(Kernel::Gemm), tier: Some(Tier::Amx), ..Options::default() };
    if latent_kernels::features().tier() < Tier::Amx {
        assert_eq!(
            refused(marlin.multiply_with(&options, &weight, Input::F32(&[0.0; 64]), 1, &mut y[..3])),
            "no kernel gemm on amx for groups of 32 and inputs of f32"
        );
    }
    let short = pack_fp4(&[1.0; 192], Shape { group: 4, ..SHAPE }).unwrap();
    let options =
        Options { activations: Activations::Int8, tier: Some(Tier::Portable), ..Options::default() };
    assert_eq!(
        refused(marlin.multiply_with(
            &options,
            &short.weight().unwrap(),
            Input::F32(&[0.0; 64]),
            1,
            &mut y[..3]
        )),
        "no kernel fused on portable for groups of 4 and inputs of int8"
    );
}

#[test]
fn weights_that_cannot_be_packed_are_refused() {
    let mut dense = [0.5; 192];
    dense[3 * 40 + 2] = f32::NAN;
    assert_eq!(
        refused(pack_fp4(&dense, SHAPE)),
        "the weight at [40, 2] is NaN: only finite weights can be packed"
    );
    dense[3 * 40 + 2] = f32::MAX;
    assert!(refused(pack_u4(&dense, SHAPE)).starts_with("group 1 of column 2 needs the scale"));
    assert_eq!(
        refused(pack_fp4(&dense[1..], SHAPE)),
        "the weight [64, 3] has 192 elements, but 191 were given"
    );
    assert!(matches!(pack_fp4(&[], Shape { k: 12, n: 0, group: 4 }), Err(Error::WordSize { k: 12 })));
}
