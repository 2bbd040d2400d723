//! Rounds a matrix to 4-bit integers or E2M1.

use crate::random::Random;
use latent_types::TensorType;

/// A quantized matrix: unsigned quants by row, with a scale and a zero point per output and group.
pub(super) struct QuantizedMatrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) groups: usize,
    /// `[outputs, inputs]`.
    pub(super) quants: Vec<u32>,
    /// `[outputs, groups]`.
    pub(super) scales: Vec<f32>,
    /// `[outputs, groups]`.
    pub(super) zeros: Vec<u32>,
    /// The group of each input.
    pub(super) group_of: Vec<usize>,
}

impl QuantizedMatrix {
    /// The dequantized values.
    pub(super) fn values(&self) -> Vec<f32> {
        let value = |i: usize| {
            let place = i / self.inputs * self.groups + self.group_of[i % self.inputs];
            (self.quants[i] as f32 - self.zeros[place] as f32) * self.scales[place]
        };
        (0..self.quants.len()).map(value).collect()
    }
}

/// Rounds `numbers` to integers from 0 to 15 by group, with scales of type `ty`.
pub(super) fn integers(
    numbers: &[f32],
    inputs: usize,
    group: usize,
    symmetric: bool,
    ordered: bool,
    ty: TensorType,
    random: &mut Random,
) -> QuantizedMatrix {
    let (outputs, groups) = (numbers.len() / inputs, inputs / group);
    let mut columns: Vec<usize> = (0..inputs).collect();
    if ordered {
        // A Fisher-Yates shuffle: act-order assigns inputs to groups in the order of their
        // importance, which is unrelated to their position.
        (1..inputs).rev().for_each(|i| columns.swap(i, random.next() as usize % (i + 1)));
    }
    let mut group_of = vec![0; inputs];
    columns.iter().enumerate().for_each(|(i, column)| group_of[*column] = i / group);
    let (mut scales, mut zeros) = (vec![0.0; outputs * groups], vec![8; outputs * groups]);
    for (row, row_numbers) in numbers.chunks_exact(inputs).enumerate() {
        for g in 0..groups {
            let of_group = columns[g * group..(g + 1) * group].iter().map(|column| row_numbers[*column]);
            let (low, high) = of_group.fold((0.0f32, 0.0f32), |(low, high), n| (low.min(n), high.max(n)));
            let place = row * groups + g;
            let width = if symmetric { high.max(-low) * 2.0 } else { high - low };
            // The quants below use the scale as the file stores it. 1e-5 is a subnormal number of
            // f16, not 0, so no division by zero follows.
            scales[place] = through(ty, (width / 15.0).max(1e-5));
            if !symmetric {
                zeros[place] = (-low / scales[place]).round().clamp(0.0, 15.0) as u32;
            }
        }
    }
    let quant = |(i, number): (usize, &f32)| {
        let place = i / inputs * groups + group_of[i % inputs];
        ((number / scales[place]).round() + zeros[place] as f32).clamp(0.0, 15.0) as u32
    };
    let quants = numbers.iter().enumerate().map(quant).collect();
    QuantizedMatrix { outputs, inputs, groups, quants, scales, zeros, group_of }
}

/// A number rounded to the type `ty`.
pub(super) fn through(ty: TensorType, number: f32) -> f32 {
    let mut out = [0.0];
    // Float types decode whatever they encode.
    let _ = latent_quant::decode(ty, &encoded(ty, &[number]), &mut out);
    out[0]
}

/// Encodes numbers in a float type.
pub(super) fn encoded(ty: TensorType, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * ty.block_bytes()];
    // Float types encode any number.
    let _ = latent_quant::encode(ty, numbers, &mut bytes);
    bytes
}

/// The magnitudes of E2M1 by code.
pub(super) const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The E2M1 code nearest to a number.
pub(super) fn e2m1(number: f32) -> u8 {
    let off = |code: &usize| (E2M1[*code] - number.abs()).abs();
    let code = (0..8).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or_default() as u8;
    if number < 0.0 { code | 8 } else { code }
}

pub(super) fn e2m1_value(code: u8) -> f32 {
    let value = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}
