//! Products on the first adapter of the machine. In CI it is Mesa's lavapipe.

#![cfg_attr(
    not(feature = "gpu"),
    allow(dead_code, unused_imports, reason = "a build without GPUs tests its error")
)]

use crate::truth::{KINDS, OwnedWeight, Random, errors, product, to_bf16, to_f16, widened};
use latent_marlin::half::f16;
use latent_marlin::{
    Activations, DeviceArray, Error, GemmDevice, Input, Kernel, Marlin, Options, QuantType, Shape, pack_fp4,
    pack_u4,
};
use latent_types::Tier;

#[cfg(not(feature = "gpu"))]
#[test]
fn a_build_without_gpus_says_so() {
    for name in ["gpu", "gpu:3"] {
        let error = GemmDevice::named(name).err().unwrap().to_string();
        assert!(error.contains("build Latent with the feature gpu"), "{error}");
    }
    let error = GemmDevice::named("cuda").err().unwrap().to_string();
    assert!(error.contains("expected cpu, auto, gpu or gpu:N; this build has no GPU support"), "{error}");
    assert!(GemmDevice::named("cpu").unwrap().is_none() && GemmDevice::named("auto").unwrap().is_none());
}

/// Opens the first adapter for one test alone. Without an adapter the test is skipped, unless
/// `REQUIRE_GPU` is set.
#[cfg(feature = "gpu")]
fn device() -> Option<GemmDevice> {
    match GemmDevice::open(0) {
        Ok(device) => Some(device),
        Err(Error::UnknownDevice { .. }) if std::env::var_os("REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no adapter");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// M, K, N, group size and type of the scales, with partial tiles in every dimension, groups that
/// end inside a word, and one group, row, column or word.
const SHAPES: [(usize, usize, usize, usize, &str); 10] = [
    (1, 8, 1, 8, "f16"),
    (1, 512, 37, 32, "e8m0"),
    (2, 96, 33, 4, "f16"),
    (3, 120, 50, 12, "e4m3"),
    (5, 136, 15, 136, "f16"),
    (7, 272, 97, 16, "e4m3"),
    (9, 1088, 65, 32, "e8m0"),
    (17, 40, 17, 1, "f16"),
    (37, 584, 113, 8, "f16"),
    (70, 264, 49, 24, "f16"),
];

#[cfg(feature = "gpu")]
#[test]
fn every_kernel_gives_the_products_of_the_decoded_weights() {
    let Some(device) = device() else { return };
    let (random, mut ran) = (&mut Random(1), 0);
    for (m, k, n, group, kind) in SHAPES {
        let shape = Shape { k, n, group };
        for quant in QuantType::ALL {
            let weight = OwnedWeight::random(quant, kind, shape, random);
            let resident = device.upload(&weight.view()).unwrap();
            assert_eq!((resident.shape(), resident.quant()), (shape, quant));
            let x = random.numbers(m * k);
            let (halves, bf16s) = (to_f16(&x), to_bf16(&x));
            let bias: Vec<f32> = random.numbers(n);
            let bias_there = device.rows(Input::F32(&bias), 1, n).unwrap();
            for input in [Input::F32(&x), Input::F16(&halves), Input::Bf16(&bf16s)] {
                let wide = widened(input);
                let truth = product(&weight, &wide, &wide, m);
                let x = device.rows(input, m, k).unwrap();
                assert_eq!(x.is_f16(), matches!(input, Input::F16(_)));
                for kernel in Kernel::ALL {
                    let slices = (kernel == Kernel::Striped).then_some((k / 8).min(3));
                    let options = Options { kernel: Some(kernel), slices, ..Options::default() };
                    let y = resident.multiply(&options, &x, None).unwrap();
                    let mut found = vec![f32::NAN; m * n];
                    y.read(&mut found).unwrap();
                    let (worst, nmse) = errors(&found, &truth);
                    // On hardware, f16 inputs may be multiplied by cooperative matrices, for which
                    // weights are rounded to f16.
                    let (bound, most) = if x.is_f16() { (1e-3, 1e-5) } else { (1e-6, 1e-7) };
                    let case =
                        format!("{} {kind} {m}x{k}x{n} g{group}", resident.plan(&options, m).unwrap().name);
                    assert!(worst <= bound, "{case}: error {worst:e}");
                    assert!(m * n < 64 || nmse <= most, "{case}: NMSE {nmse:e}");
                    let mut biased = vec![f32::NAN; m * n];
                    resident.multiply(&options, &x, Some(&bias_there)).unwrap().read(&mut biased).unwrap();
                    let expected = found.iter().zip(bias.iter().cycle()).map(|(sum, bias)| sum + bias);
                    assert!(
                        biased.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{case}: bias"
                    );
                    ran += 1;
                }
            }
        }
    }
    assert_eq!(ran, SHAPES.len() * 27);
}

#[cfg(feature = "gpu")]
#[test]
fn decoded_weights_are_those_of_the_cpu_bit_by_bit() {
    let Some(device) = device() else { return };
    let (random, mut marlin) = (&mut Random(4), Marlin::new(1).unwrap());
    for (k, n, group) in [(8, 1, 8), (96, 33, 4), (120, 50, 24), (64, 7, 64)] {
        for quant in QuantType::ALL {
            for kind in KINDS {
                let weight = OwnedWeight::random(quant, kind, Shape { k, n, group }, random);
                let resident = device.upload(&weight.view()).unwrap();
                let (mut expected, mut found) = (vec![0.0; k * n], vec![f32::NAN; k * n]);
                marlin.dequantize(&weight.view(), &mut expected).unwrap();
                resident.dequantize().unwrap().read(&mut found).unwrap();
                assert_eq!(found, expected, "{} {kind} {k}x{n}", quant.name());
                let (mut expected, mut found) = (vec![f16::ZERO; k * n], vec![f16::NAN; k * n]);
                marlin.dequantize_f16(&weight.view(), &mut expected).unwrap();
                resident.dequantize_f16().unwrap().read_f16(&mut found).unwrap();
                assert_eq!(found, expected, "{} {kind} {k}x{n} in f16", quant.name());
            }
        }
    }
}

#[cfg(feature = "gpu")]
#[test]
fn a_chain_stays_on_the_device_until_it_is_read() {
    let Some(device) = device() else { return };
    let random = &mut Random(7);
    let before = device.memory_in_use();
    let sizes = [40, 72, 24, 17];
    let layers: Vec<OwnedWeight> = sizes
        .windows(2)
        .map(|pair| {
            OwnedWeight::random(QuantType::Fp4, "f16", Shape { k: pair[0], n: pair[1], group: 8 }, random)
        })
        .collect();
    let resident: Vec<_> = layers.iter().map(|layer| device.upload(&layer.view()).unwrap()).collect();
    for m in [1, 21] {
        let numbers = random.numbers(m * sizes[0]);
        let mut x = device.rows(Input::F32(&numbers), m, sizes[0]).unwrap();
        let mut expected = numbers;
        let mut marlin = Marlin::new(1).unwrap();
        for (layer, resident) in layers.iter().zip(&resident) {
            let options = Options { tier: Some(Tier::Portable), ..Options::default() };
            let mut y = vec![0.0; m * layer.shape.n];
            marlin.multiply_with(&options, &layer.view(), Input::F32(&expected), m, &mut y).unwrap();
            expected = y;
            x = resident.multiply(&Options::default(), &x, None).unwrap();
        }
        let mut found = vec![f32::NAN; m * 17];
        x.read(&mut found).unwrap();
        let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-3 * largest), "{m} rows");
    }
    assert!(device.memory_in_use() > before);
    drop(resident);
    assert_eq!(device.memory_in_use(), before, "memory that nothing uses is kept");
}

#[cfg(feature = "gpu")]
#[test]
fn inputs_are_reordered_and_converted_there() {
    let Some(device) = device() else { return };
    let random = &mut Random(9);
    let (m, k, n) = (5, 48, 19);
    let weight = OwnedWeight::random(QuantType::Int4, "f16", Shape { k, n, group: 16 }, random);
    let order: Vec<u32> = (0..k as u32).map(|i| i * 5 % k as u32).collect();
    let x = random.numbers(m * k);
    let halves = to_f16(&x);
    let moved =
        |x: &[f32]| -> Vec<f32> { (0..m * k).map(|i| x[i / k * k + order[i % k] as usize]).collect() };
    let (plain, ordered) =
        (device.upload(&weight.view()).unwrap(), device.upload_ordered(&weight.view(), &order).unwrap());
    let read = |y: DeviceArray| {
        let (rows, columns) = y.shape();
        let mut found = vec![f32::NAN; rows * columns];
        y.read(&mut found).unwrap();
        found
    };
    let options = Options::default();
    let there = |x: &[f32]| device.rows(Input::F32(x), m, k).unwrap();
    let expected = read(plain.multiply(&options, &there(&moved(&x)), None).unwrap());
    assert_eq!(read(ordered.multiply(&options, &there(&x), None).unwrap()), expected);
    // f16 that was uploaded as f16, and f16 that the device converted from f32.
    let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
    let expected = read(plain.multiply(&options, &there(&moved(&wide)), None).unwrap());
    let sent = device.rows(Input::F16(&halves), m, k).unwrap();
    let made = there(&x).converted(true).unwrap();
    assert!(made.is_f16());
    for x in [&sent, &made] {
        assert_eq!(read(ordered.multiply(&options, x, None).unwrap()), expected);
    }
    assert_eq!(read(made.converted(false).unwrap()), wide);
    // Every f16, with subnormals, and an odd number of columns.
    let all: Vec<f32> =
        (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).filter(|v| !v.is_nan()).collect();
    let all = &all[..63_485];
    for (rows, columns) in [(1, 63_485), (5, 12_697)] {
        let there = device.rows(Input::F32(all), rows, columns).unwrap().converted(true).unwrap();
        let mut bits = vec![f16::NAN; all.len()];
        there.read_f16(&mut bits).unwrap();
        assert!(bits.iter().zip(all).all(|(a, b)| a.to_f32() == *b));
        assert_eq!(read(there), all);
    }
}

#[cfg(feature = "gpu")]
#[test]
fn threads_share_a_device() {
    let Some(device) = device() else { return };
    let weight =
        OwnedWeight::random(QuantType::Fp4, "f16", Shape { k: 264, n: 65, group: 8 }, &mut Random(2));
    let resident = device.upload(&weight.view()).unwrap();
    let product = |m: usize| {
        let x = device.rows(Input::F32(&Random(m as u64).numbers(m * 264)), m, 264).unwrap();
        let mut found = vec![f32::NAN; m * 65];
        resident.multiply(&Options::default(), &x, None).unwrap().read(&mut found).unwrap();
        found
    };
    let expected: Vec<Vec<f32>> = (1..30).map(product).collect();
    std::thread::scope(|scope| {
        let others = [(); 4].map(|()| scope.spawn(|| (1..30).map(product).collect::<Vec<_>>()));
        assert!(others.into_iter().all(|other| other.join().unwrap() == expected));
    });
}

#[cfg(feature = "gpu")]
#[test]
fn kernels_have_the_names_of_the_shape() {
    let Some(device) = device() else { return };
    let (random, options) = (&mut Random(3), Options::default());
    let named = |quant, (m, k, n): (usize, usize, usize), random: &mut Random| {
        let weight = OwnedWeight::random(quant, "f16", Shape { k, n, group: 32 }, random);
        let plan = device.upload(&weight.view()).unwrap().plan(&options, m).unwrap();
        (plan.name, plan.slices)
    };
    assert_eq!(named(QuantType::Fp4, (1, 4096, 64), random), ("marlin_gemm_fused_fp4", 1));
    assert_eq!(named(QuantType::Int4, (8, 64, 640), random), ("marlin_gemm_fused_u4", 1));
    assert_eq!(named(QuantType::Fp4, (64, 2048, 128), random), ("marlin_gemm_fp4_striped", 4));
    assert_eq!(named(QuantType::Int4Sym, (64, 992, 128), random), ("marlin_gemm_s4", 1));
    assert_eq!(named(QuantType::Fp4, (16_384, 1024, 64), random), ("marlin_gemm_fp4", 1));
}

#[cfg(feature = "gpu")]
#[test]
fn empty_operands_have_empty_results() {
    let Some(device) = device() else { return };
    let read = |k: usize, n: usize, m: usize| {
        let packed = pack_fp4(&vec![1.0; k * n], Shape { k, n, group: 8 }).unwrap();
        let resident = device.upload(&packed.weight().unwrap()).unwrap();
        let x = device.rows(Input::F32(&vec![1.0; m * k]), m, k).unwrap();
        let bias = device.rows(Input::F32(&vec![2.0; n]), 1, n).unwrap();
        let y = resident.multiply(&Options::default(), &x, Some(&bias)).unwrap();
        let mut found = vec![f32::NAN; m * n];
        y.read(&mut found).unwrap();
        found
    };
    assert_eq!(read(0, 3, 2), [2.0; 6]);
    assert!(read(8, 0, 2).is_empty() && read(8, 3, 0).is_empty());
}

#[cfg(feature = "gpu")]
#[test]
fn what_does_not_fit_is_refused_as_on_the_cpu() {
    let problem = |result: Result<(), Error>| result.unwrap_err().to_string();
    for name in ["cuda", "gpu:", "gpu:x", "GPU", ""] {
        let error = GemmDevice::named(name).err().unwrap().to_string();
        assert!(error.contains("expected cpu, auto, gpu or gpu:N; this machine has"), "{error}");
    }
    assert!(GemmDevice::named("cpu").unwrap().is_none());
    let Some(device) = device() else { return };
    let error = GemmDevice::named("gpu:9999").err().unwrap().to_string();
    assert!(error.contains("unknown device \"gpu:9999\"") && error.contains("gpu:0 ("), "{error}");
    let shape = Shape { k: 64, n: 3, group: 32 };
    let packed = pack_u4(&[0.5; 192], shape).unwrap();
    let weight = device.upload(&packed.weight().unwrap()).unwrap();
    let rows = |m: usize, k: usize| device.rows(Input::F32(&vec![1.0; m * k]), m, k).unwrap();
    let multiply = |options: &Options, x: &DeviceArray, bias: Option<&DeviceArray>| {
        weight.multiply(options, x, bias).map(|_| ())
    };
    let plain = Options::default();
    assert_eq!(
        problem(device.rows(Input::F32(&[1.0; 63]), 1, 64).map(|_| ())),
        "the input [1, 64] has 64 elements, but 63 were given"
    );
    assert_eq!(
        problem(multiply(&plain, &rows(2, 60), None)),
        "the input [2, 64] has 128 elements, but 120 were given"
    );
    assert_eq!(
        problem(multiply(&plain, &rows(2, 64), Some(&rows(1, 4)))),
        "the bias [1, 3] has 3 elements, but 4 were given"
    );
    let forced = |options: Options| problem(multiply(&options, &rows(2, 64), None));
    let striped = Some(Kernel::Striped);
    assert!(forced(Options { kernel: striped, slices: Some(9), ..plain }).contains("from 1 to K / 8 = 8"),);
    assert!(forced(Options { tier: Some(Tier::Portable), ..plain }).contains("isa selects CPU instructions"));
    assert!(
        forced(Options { activations: Activations::Int8, ..plain })
            .contains("no kernel fused on gpu:0 for inputs of int8")
    );
    let other = GemmDevice::open(0).unwrap();
    let foreign = other.rows(Input::F32(&[1.0; 64]), 1, 64).unwrap();
    assert!(problem(multiply(&plain, &foreign, None)).contains("the input is in the memory of gpu:0"));
    let mut order: Vec<u32> = (0..64).collect();
    order[7] = 64;
    let ordered =
        |order: &[u32]| problem(device.upload_ordered(&packed.weight().unwrap(), order).map(|_| ()));
    assert_eq!(ordered(&order), "the order of inputs has 64 at 7, but K is 64");
    assert!(ordered(&order[..63]).contains("the order of inputs [64, 1]"));
    let y = weight.multiply(&plain, &rows(2, 64), None).unwrap();
    assert!(problem(y.read(&mut [0.0; 5])).contains("the result [2, 3] has 6 elements, but 5 were given"));
    let huge = rows_of_nothing(&device);
    assert!(problem(multiply(&plain, &huge, None)).contains("the input"));
    let empty = pack_fp4(&[], Shape { k: 0, n: 1000, group: 8 }).unwrap();
    let empty = device.upload(&empty.weight().unwrap()).unwrap();
    let error = problem(empty.multiply(&plain, &huge, None).map(|_| ()));
    assert!(error.contains("per buffer") || error.contains("more elements than fit"), "{error}");
    other.set_memory_limit(1 << 10);
    let error = problem(other.rows(Input::F32(&[0.0; 4096]), 1, 4096).map(|_| ()));
    assert!(error.contains("out of device memory") && !error.contains("layers"), "{error}");
    assert!(other.is_usable() && !other.is_forked());
}

/// Rows without elements, but more of them than any memory could hold results for.
#[cfg(feature = "gpu")]
fn rows_of_nothing(device: &GemmDevice) -> DeviceArray {
    device.rows(Input::F32(&[]), usize::MAX, 0).unwrap()
}
