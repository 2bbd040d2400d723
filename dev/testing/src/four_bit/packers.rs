//! Packs quantized weights in the layout of each program. When eight integers share a word, the
//! first occupies its lowest bits.

use super::form::{FourBitLayout, FourBitRecipe, Fp8Scale, TensorData};
use super::quantize::{QuantizedMatrix, e2m1, e2m1_value, encoded, integers, through};
use crate::random::Random;
use latent_types::TensorType;

/// The tensors that replace the weight `name`, and its values after rounding.
pub(super) fn pack(
    form: &FourBitRecipe,
    name: &str,
    numbers: &[f32],
    inputs: usize,
    random: &mut Random,
) -> (Vec<TensorData>, Vec<f32>) {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    match form.layout {
        FourBitLayout::Nvfp4 => return nvfp4(stem, numbers, inputs),
        FourBitLayout::Mxfp4 => return mxfp4(stem, numbers, inputs),
        FourBitLayout::ModelOpt => return modelopt(stem, numbers, inputs),
        FourBitLayout::Fp8(scale) => return fp8(stem, numbers, inputs, (TensorType::F8_E4M3, scale)),
        FourBitLayout::E5m2(scale) => return fp8(stem, numbers, inputs, (TensorType::F8_E5M2, scale)),
        _ => {}
    }
    let group = form.group.unwrap_or(inputs);
    let q = integers(numbers, inputs, group, form.symmetric, form.ordered, form.scales, random);
    let tensors = match form.layout {
        FourBitLayout::Awq => awq(stem, &q, form.scales),
        FourBitLayout::PackQuantized => pack_quantized(stem, &q, form),
        _ => gptq(stem, &q, form),
    };
    (tensors, q.values())
}

fn held(stem: &str, end: &str, ty: TensorType, shape: &[usize], bytes: Vec<u8>) -> TensorData {
    TensorData { name: format!("{stem}.{end}"), ty, shape: shape.to_vec(), bytes }
}

/// A matrix of words of eight integers each. `at` receives a word's row and column and the place of
/// an integer in it.
fn words(rows: usize, cols: usize, at: impl Fn(usize, usize, usize) -> u32) -> Vec<u8> {
    let word =
        |i: usize| (0..8).fold(0u32, |word, place| word | at(i / cols, i % cols, place) << (4 * place));
    (0..rows * cols).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// The transpose of a matrix with `cols` columns.
fn transposed<T: Copy>(numbers: &[T], cols: usize) -> Vec<T> {
    let rows = numbers.len() / cols;
    (0..numbers.len()).map(|i| numbers[i % rows * cols + i / rows]).collect()
}

fn gptq(stem: &str, q: &QuantizedMatrix, form: &FourBitRecipe) -> Vec<TensorData> {
    let (words_in, words_out) = (q.inputs / 8, q.outputs / 8);
    let quants = words(words_in, q.outputs, |row, output, i| q.quants[output * q.inputs + row * 8 + i]);
    let mut zeros = words(q.groups, words_out, |group, col, i| q.zeros[(col * 8 + i) * q.groups + group]);
    if form.layout == FourBitLayout::Gptq {
        // GPTQModel subtracts one from all eight zero points by a subtraction on the whole word, so
        // a zero point of 0 borrows from its neighbour. Readers undo this by adding to the whole
        // word.
        for word in zeros.chunks_exact_mut(4) {
            let less = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_sub(0x1111_1111);
            word.copy_from_slice(&less.to_le_bytes());
        }
    }
    vec![
        held(stem, "qweight", TensorType::I32, &[words_in, q.outputs], quants),
        held(stem, "qzeros", TensorType::I32, &[q.groups, words_out], zeros),
        scales_by_group(stem, q, form.scales),
        held(stem, "g_idx", TensorType::I32, &[q.inputs], order(q)),
    ]
}

fn scales_by_group(stem: &str, q: &QuantizedMatrix, ty: TensorType) -> TensorData {
    let scales = encoded(ty, &transposed(&q.scales, q.groups));
    held(stem, "scales", ty, &[q.groups, q.outputs], scales)
}

fn order(q: &QuantizedMatrix) -> Vec<u8> {
    q.group_of.iter().flat_map(|group| (*group as i32).to_le_bytes()).collect()
}

/// The output, out of eight consecutive ones, at each place of a word. In this order one mask
/// (`0x000f000f`) extracts two consecutive outputs into the two halves of a register.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

fn awq(stem: &str, q: &QuantizedMatrix, ty: TensorType) -> Vec<TensorData> {
    let across = q.outputs / 8;
    let quants =
        words(q.inputs, across, |input, col, i| q.quants[(col * 8 + AWQ_ORDER[i]) * q.inputs + input]);
    let zeros = words(q.groups, across, |group, col, i| q.zeros[(col * 8 + AWQ_ORDER[i]) * q.groups + group]);
    vec![
        held(stem, "qweight", TensorType::I32, &[q.inputs, across], quants),
        held(stem, "qzeros", TensorType::I32, &[q.groups, across], zeros),
        scales_by_group(stem, q, ty),
    ]
}

/// compressed-tensors stores signed integers with 8 added, which gives the same bits as unsigned
/// integers around 8.
fn pack_quantized(stem: &str, q: &QuantizedMatrix, form: &FourBitRecipe) -> Vec<TensorData> {
    let across = q.inputs / 8;
    let quants = words(q.outputs, across, |output, col, i| q.quants[output * q.inputs + col * 8 + i]);
    let mut tensors = vec![
        held(stem, "weight_packed", TensorType::I32, &[q.outputs, across], quants),
        held(stem, "weight_scale", form.scales, &[q.outputs, q.groups], encoded(form.scales, &q.scales)),
        stated_shape(stem, q.outputs, q.inputs),
    ];
    if !form.symmetric {
        // Zero points are packed along the outputs, unlike the weights.
        let down = q.outputs.div_ceil(8);
        let zero = |row: usize, group: usize, i: usize| q.zeros.get((row * 8 + i) * q.groups + group);
        let zeros = words(down, q.groups, |row, group, i| zero(row, group, i).copied().unwrap_or(0));
        tensors.push(held(stem, "weight_zero_point", TensorType::I32, &[down, q.groups], zeros));
    }
    if form.ordered {
        tensors.push(held(stem, "weight_g_idx", TensorType::I32, &[q.inputs], order(q)));
    }
    tensors
}

fn stated_shape(stem: &str, outputs: usize, inputs: usize) -> TensorData {
    let bytes = [outputs, inputs].iter().flat_map(|side| (*side as i64).to_le_bytes()).collect();
    held(stem, "weight_shape", TensorType::I64, &[2], bytes)
}

/// Packs two codes per byte, the first in the lower half.
fn pairs(codes: &[u8]) -> Vec<u8> {
    codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect()
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0f32, |m, n| m.max(n.abs()))
}

fn nvfp4(stem: &str, numbers: &[f32], inputs: usize) -> (Vec<TensorData>, Vec<f32>) {
    // The largest weight is represented by the largest E4M3 scale (448) times the largest E2M1
    // value (6).
    let global = 448.0 * 6.0 / largest(numbers).max(1e-6);
    let (mut scales, mut codes, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for group in numbers.chunks_exact(16) {
        // 1/64 is the smallest normal E4M3 number. Without this bound a group of zeros would divide
        // by a scale of 0.
        let scale = through(TensorType::F8_E4M3, (largest(group) / 6.0 * global).max(1.0 / 64.0));
        scales.push(scale);
        for number in group {
            let code = e2m1(number * global / scale);
            codes.push(code);
            values.push(e2m1_value(code) * (scale / global));
        }
    }
    let outputs = numbers.len() / inputs;
    let scales = encoded(TensorType::F8_E4M3, &scales);
    let tensors = vec![
        held(stem, "weight_packed", TensorType::I8, &[outputs, inputs / 2], pairs(&codes)),
        held(stem, "weight_scale", TensorType::F8_E4M3, &[outputs, inputs / 16], scales),
        held(stem, "weight_global_scale", TensorType::F32, &[1], global.to_le_bytes().to_vec()),
        held(stem, "input_global_scale", TensorType::F32, &[1], 1f32.to_le_bytes().to_vec()),
    ];
    (tensors, values)
}

fn mxfp4(stem: &str, numbers: &[f32], inputs: usize) -> (Vec<TensorData>, Vec<f32>) {
    let (mut scales, mut codes, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for group in numbers.chunks_exact(32) {
        // The OCP microscaling rule: the exponent of the largest weight less that of the largest
        // E2M1 value, 6 = 1.5 · 2².
        let exponent = largest(group).max(1e-6).log2().floor() as i32 - 2;
        scales.push((exponent + 127) as u8);
        for number in group {
            let code = e2m1(number / 2f32.powi(exponent));
            codes.push(code);
            values.push(e2m1_value(code) * 2f32.powi(exponent));
        }
    }
    let outputs = numbers.len() / inputs;
    let tensors = vec![
        held(stem, "weight_packed", TensorType::I8, &[outputs, inputs / 2], pairs(&codes)),
        held(stem, "weight_scale", TensorType::I8, &[outputs, inputs / 32], scales),
    ];
    (tensors, values)
}

/// NVFP4 codes and scales under ModelOpt's names. The global scale multiplies here; in
/// compressed-tensors it divides.
fn modelopt(stem: &str, numbers: &[f32], inputs: usize) -> (Vec<TensorData>, Vec<f32>) {
    let (tensors, _) = nvfp4(stem, numbers, inputs);
    let [codes, scales, _, _] = <[TensorData; 4]>::try_from(tensors).unwrap_or_else(|_| unreachable!());
    // A power of two makes the products exact in f32, in any order of multiplication.
    let global = 2f32.powi((largest(numbers).max(1e-6) / 448.0 / 6.0).log2().ceil() as i32);
    let decode = |byte: u8| latent_quant::f8_e4m3::value(byte);
    let values = codes.bytes.iter().flat_map(|pair| [pair & 15, pair >> 4]).enumerate();
    let values = values.map(|(i, code)| e2m1_value(code) * (decode(scales.bytes[i / 16]) * global)).collect();
    let scalar = |end, number: f32| held(stem, end, TensorType::F32, &[], number.to_le_bytes().to_vec());
    let tensors = vec![
        TensorData { name: format!("{stem}.weight"), ..codes },
        TensorData { name: format!("{stem}.weight_scale"), ..scales },
        scalar("weight_scale_2", global),
        scalar("input_scale", 0.5),
    ];
    (tensors, values)
}

/// FP8 weights with bf16 scales.
fn fp8(
    stem: &str,
    numbers: &[f32],
    inputs: usize,
    (ty, part): (TensorType, Fp8Scale),
) -> (Vec<TensorData>, Vec<f32>) {
    let outputs = numbers.len() / inputs;
    let (rows, cols) = match part {
        Fp8Scale::Tensor => (outputs, inputs),
        Fp8Scale::Channel => (1, inputs),
        Fp8Scale::Block => (128, 128),
    };
    let (down, across) = (outputs.div_ceil(rows), inputs.div_ceil(cols));
    let mut scales = vec![0f32; down * across];
    let place = |i: usize| i / inputs / rows * across + i % inputs / cols;
    for (i, number) in numbers.iter().enumerate() {
        scales[place(i)] = scales[place(i)].max(number.abs());
    }
    // The largest finite number of each format.
    let end = if ty == TensorType::F8_E4M3 { 448.0 } else { 57344.0 };
    let scales: Vec<f32> =
        // With a scale of 0, a part of zeros would divide by zero.
        scales.iter().map(|scale| through(TensorType::BF16, scale.max(1e-6) / end)).collect();
    let (mut codes, mut values) = (Vec::new(), Vec::new());
    for (i, number) in numbers.iter().enumerate() {
        let scaled = number / scales[place(i)];
        let (code, value) = match ty {
            TensorType::F8_E4M3 => {
                let code = latent_quant::f8_e4m3::code(scaled);
                (code, latent_quant::f8_e4m3::value(code))
            }
            _ => e5m2(scaled),
        };
        codes.push(code);
        values.push(value * scales[place(i)]);
    }
    let (shape, end): (&[usize], _) = match part {
        Fp8Scale::Tensor => (&[], "weight_scale"),
        Fp8Scale::Channel => (&[down, 1], "weight_scale"),
        Fp8Scale::Block => (&[down, across], "weight_scale"),
    };
    let mut tensors = vec![
        held(stem, "weight", ty, &[outputs, inputs], codes),
        held(stem, end, TensorType::BF16, shape, encoded(TensorType::BF16, &scales)),
    ];
    if part == Fp8Scale::Tensor {
        tensors.push(held(stem, "input_scale", TensorType::F32, &[], 0.25f32.to_le_bytes().to_vec()));
    }
    (tensors, values)
}

/// Rounds a number towards zero to E5M2; gives the code and its value.
fn e5m2(number: f32) -> (u8, f32) {
    let size = number.abs().min(57344.0);
    // Below the smallest normal number; subnormals are not generated.
    if size < 2f32.powi(-14) {
        return (0, 0.0);
    }
    let exponent = size.log2().floor() as i32;
    let quarters = ((size / 2f32.powi(exponent) - 1.0) * 4.0).floor().clamp(0.0, 3.0);
    let value = (1.0 + quarters / 4.0) * 2f32.powi(exponent);
    let sign = if number < 0.0 { -1.0 } else { 1.0 };
    let code = (exponent + 15) as u8 * 4 + quarters as u8;
    (if number < 0.0 { code | 0x80 } else { code }, sign * value)
}
