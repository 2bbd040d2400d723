//! Decodes rows of a 4-bit weight to its block format.

use super::blocks;
use super::form::{FourBitEncoding, FourBitWeight, IntEncoding, WordPacking, ZeroCode};
use super::numbers::{FloatScales, check_groups, first_moved, power, word};
use crate::error::FourBitError;
use crate::tensor::TensorInfo;
use half::f16;
use latent_types::TensorType;
use std::ops::Range;

/// Reads rows of one weight.
pub(crate) struct FourBitDecoder<'a> {
    form: FourBitEncoding,
    ty: TensorType,
    outputs: usize,
    inputs: usize,
    quants: &'a [u8],
    scales: FloatScales<'a>,
    /// The scales of NVFP4 and MXFP4.
    codes: &'a [u8],
    zeros: Option<&'a [u8]>,
    order: Option<&'a [u8]>,
    shift: i32,
}

/// Position of an output in its word: the inverse of AWQ's order 0, 2, 4, 6, 1, 3, 5, 7.
const AWQ_PLACE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Number of rows that are unpacked together: those of a tile. GPTQ and AWQ store outputs side by
/// side, so these rows share words and cache lines, which are then read once.
const TOGETHER: usize = 16;

impl<'a> FourBitDecoder<'a> {
    /// A decoder of `weight`. `bytes` gives the bytes of its tensors.
    ///
    /// # Errors
    /// Zero points, an order or a shape that contradict the settings; scales that the block format
    /// cannot represent.
    pub(crate) fn new(
        weight: &FourBitWeight,
        bytes: &dyn Fn(&TensorInfo) -> &'a [u8],
    ) -> Result<FourBitDecoder<'a>, FourBitError> {
        let [outputs, inputs] = weight.shape;
        let codes = bytes(&weight.scales);
        let mut decoder = FourBitDecoder {
            form: weight.form,
            ty: weight.ty,
            outputs,
            inputs,
            quants: bytes(&weight.quants),
            scales: FloatScales::new(weight.scales.ty, codes),
            codes,
            zeros: weight.zeros.as_ref().map(bytes),
            order: weight.order.as_ref().map(bytes),
            shift: 0,
        };
        if let Some(stated) = &weight.stated_shape {
            check_stated(stated, bytes(stated), &weight.shape, &weight.quants.name)?;
        }
        match weight.form {
            FourBitEncoding::Int(form) => {
                decoder.check_order(form, weight)?;
                decoder.check_zeros(form, weight)?;
                decoder.shift = *weight.shift.get_or_init(|| decoder.scales.shift(weight.ty));
            }
            // E4M3: 0x7f is NaN, and codes from 0x80 are negative. E8M0: 0xff is NaN.
            FourBitEncoding::Nvfp4 { .. } => check_codes(weight, codes, 0x7e, "a non-negative number")?,
            FourBitEncoding::Mxfp4 => check_codes(weight, codes, 0xfe, "a number")?,
        }
        Ok(decoder)
    }

    fn check_order(&mut self, form: IntEncoding, weight: &FourBitWeight) -> Result<(), FourBitError> {
        let (Some(order), Some(info)) = (self.order, &weight.order) else { return Ok(()) };
        check_groups(&info.name, order, self.inputs / form.group)?;
        match first_moved(order, form.group) {
            // AutoGPTQ writes a `g_idx` in any case. An order that changes nothing is dropped.
            None => self.order = None,
            Some((column, found)) if self.ty != TensorType::F16 || !form.ordered => {
                let (tensor, expected) = (info.name.clone(), column / form.group);
                return Err(FourBitError::Order { tensor, column, found, expected });
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn check_zeros(&self, form: IntEncoding, weight: &FourBitWeight) -> Result<(), FourBitError> {
        // Any nibble is a valid zero point of an asymmetric weight. Only a symmetric weight and
        // bytes need a check.
        let Some(info) = weight.zeros.as_ref().filter(|_| form.symmetric || form.zeros == ZeroCode::Bytes)
        else {
            return Ok(());
        };
        let one = 0x1111_1111 * u32::from(form.zeros == ZeroCode::LessOne);
        let eight = |bytes: &[u8]| word(bytes, 0) == 0x8888_8888 - one;
        // Fast path: whole words of eights. The loop below finds the position for the error, and
        // accepts padding in the last word of a row.
        if form.symmetric && self.zeros.is_some_and(|zeros| zeros.chunks_exact(4).all(eight)) {
            return Ok(());
        }
        let (allowed, expected) =
            if form.symmetric { (8..=8, "8, since sym is true in config.json") } else { (0..=15, "0 to 15") };
        for group in 0..self.inputs / form.group {
            for row in 0..self.outputs {
                let found = self.zero(form, row, group);
                if !allowed.contains(&found) {
                    let tensor = info.name.clone();
                    return Err(FourBitError::ZeroPoint { tensor, row, group, found, expected });
                }
            }
        }
        Ok(())
    }

    /// The zero point of a group. One that is stored as a byte may exceed four bits.
    fn zero(&self, form: IntEncoding, row: usize, group: usize) -> i32 {
        // Symmetric weights have the zero point in the middle of the sixteen values.
        let Some(zeros) = self.zeros else { return 8 };
        let groups = self.inputs / form.group;
        let (index, place) = match form.packing {
            WordPacking::Rows if form.zeros == ZeroCode::Bytes => {
                // Bytes are signed: from −8 to 7.
                return i32::from(zeros[row * groups + group] as i8) + 8;
            }
            WordPacking::Rows => (row / 8 * groups + group, row as u32 % 8),
            WordPacking::Gptq => (group * self.outputs.div_ceil(8) + row / 8, row as u32 % 8),
            WordPacking::Awq => (group * self.outputs.div_ceil(8) + row / 8, AWQ_PLACE[row % 8]),
        };
        // Wrapping: a zero point of 0 was stored as 15 with a borrow.
        let one = if form.zeros == ZeroCode::LessOne { 0x1111_1111 } else { 0 };
        (word(zeros, index).wrapping_add(one) >> (4 * place) & 15) as i32
    }

    fn scale_index(&self, form: IntEncoding, row: usize, group: usize) -> usize {
        match form.packing {
            WordPacking::Rows => row * (self.inputs / form.group) + group,
            WordPacking::Gptq | WordPacking::Awq => group * self.outputs + row,
        }
    }

    /// Writes the bytes of consecutive rows to `out`.
    pub(crate) fn rows(&self, rows: Range<usize>, out: &mut Vec<u8>) {
        let row_bytes = self.ty.row_bytes(self.inputs).unwrap_or(0);
        out.clear();
        out.resize(rows.len() * row_bytes, 0);
        // `chunks_mut` panics for rows of 0 bytes.
        if out.is_empty() {
            return;
        }
        let mut quants = vec![0; self.inputs * TOGETHER.min(rows.len())];
        for (first, out) in rows.clone().step_by(TOGETHER).zip(out.chunks_mut(TOGETHER * row_bytes)) {
            let some = first..rows.end.min(first + TOGETHER);
            let quants = &mut quants[..some.len() * self.inputs];
            self.unpack(some.clone(), quants);
            let each = quants.chunks_exact(self.inputs).zip(out.chunks_exact_mut(row_bytes));
            some.zip(each).for_each(|(row, (quants, out))| self.row(row, quants, out));
        }
    }

    fn row(&self, row: usize, quants: &[u8], out: &mut [u8]) {
        match self.form {
            FourBitEncoding::Int(form) if self.ty == TensorType::F16 => self.floats(form, row, quants, out),
            FourBitEncoding::Int(form) => self.int_blocks(form, row, quants, out),
            FourBitEncoding::Nvfp4 { .. } => {
                let scales = self.codes[row * (self.inputs / 16)..].chunks_exact(4);
                let blocks = quants.chunks_exact(64).zip(out.chunks_exact_mut(36));
                scales.zip(blocks).for_each(|(scales, (quants, out))| blocks::nvfp4(scales, quants, out));
            }
            FourBitEncoding::Mxfp4 => {
                let scales = &self.codes[row * (self.inputs / 32)..];
                let blocks = quants.chunks_exact(32).zip(out.chunks_exact_mut(17));
                scales
                    .iter()
                    .zip(blocks)
                    .for_each(|(scale, (quants, out))| blocks::mxfp4(*scale, quants, out));
            }
        }
    }

    /// Unpacks the quants of some rows to one per byte. Each word is read once.
    fn unpack(&self, rows: Range<usize>, out: &mut [u8]) {
        let spread = |out: &mut [u8], word: u32| {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = (word >> (4 * i)) as u8 & 15);
        };
        let FourBitEncoding::Int(IntEncoding { packing, .. }) = self.form else {
            let bytes = &self.quants[rows.start * (self.inputs / 2)..];
            for (out, byte) in out.chunks_exact_mut(2).zip(bytes) {
                // FP4 has the first of two values in the low nibble.
                (out[0], out[1]) = (byte & 15, byte >> 4);
            }
            return;
        };
        match packing {
            WordPacking::Rows => {
                let first = rows.start * (self.inputs / 8);
                let words = out.chunks_exact_mut(8).enumerate();
                words.for_each(|(i, out)| spread(out, word(self.quants, first + i)));
            }
            WordPacking::Gptq => {
                // Words of consecutive outputs are adjacent, so the inner loop is over rows.
                for i in 0..self.inputs / 8 {
                    for (r, row) in rows.clone().enumerate() {
                        let at = r * self.inputs + i * 8;
                        spread(&mut out[at..at + 8], word(self.quants, i * self.outputs + row));
                    }
                }
            }
            WordPacking::Awq => {
                let across = self.outputs / 8;
                for col in rows.start / 8..rows.end.div_ceil(8) {
                    // Requested rows may begin and end inside a word.
                    let held = rows.start.max(col * 8)..rows.end.min(col * 8 + 8);
                    for k in 0..self.inputs {
                        let word = word(self.quants, k * across + col);
                        for row in held.clone() {
                            out[(row - rows.start) * self.inputs + k] =
                                (word >> (4 * AWQ_PLACE[row % 8])) as u8 & 15;
                        }
                    }
                }
            }
        }
    }

    /// Q4_0 and Q5_0.
    fn int_blocks(&self, form: IntEncoding, row: usize, quants: &[u8], out: &mut [u8]) {
        let block = self.ty.block_bytes();
        let (quants, _) = quants.as_chunks::<32>();
        for (i, (quants, out)) in quants.iter().zip(out.chunks_exact_mut(block)).enumerate() {
            let group = i * 32 / form.group;
            let scale = self.scales.f16_bits(self.scale_index(form, row, group), self.shift);
            if self.ty == TensorType::Q4_0 {
                blocks::q4_0(scale, quants, out);
            } else {
                // `check_zeros` has rejected bytes out of range.
                blocks::q5_0(scale, self.zero(form, row, group) as u8 & 15, quants, out);
            }
        }
    }

    /// Writes a row of F16. f64 holds scale, zero point and product exactly, so each weight is
    /// rounded once.
    fn floats(&self, form: IntEncoding, row: usize, quants: &[u8], out: &mut [u8]) {
        let groups = self.inputs / form.group;
        let factors: Vec<(f64, f64)> = (0..groups)
            .map(|group| {
                let scale = self.scales.get(self.scale_index(form, row, group)) * power(self.shift);
                (scale, f64::from(self.zero(form, row, group)))
            })
            .collect();
        for (column, (quant, out)) in quants.iter().zip(out.chunks_exact_mut(2)).enumerate() {
            // `check_order` has rejected groups out of range.
            let group = self.order.map_or(column / form.group, |order| word(order, column) as usize);
            let (scale, zero) = factors[group];
            out.copy_from_slice(&f16::from_f64((f64::from(*quant) - zero) * scale).to_le_bytes());
        }
    }

    /// The factor of the rows.
    pub(crate) fn factor(&self, global: Option<(&TensorInfo, &[u8])>) -> Result<f32, FourBitError> {
        let Some((info, bytes)) = global else { return Ok(power(-self.shift) as f32) };
        let global = f32::from_bits(word(bytes, 0));
        // The reciprocal too, because it is the factor with `divides`.
        if global.is_normal() && global > 0.0 && global.recip().is_normal() {
            let divides = self.form == FourBitEncoding::Nvfp4 { divides: true };
            return Ok(if divides { global.recip() } else { global });
        }
        let (tensor, found) = (info.name.clone(), global.to_string());
        Err(FourBitError::Scale { tensor, index: 0, found, expected: "a positive number" })
    }
}

/// Checks that no scale has a code above `last`. Such codes are negative or NaN.
fn check_codes(
    weight: &FourBitWeight,
    codes: &[u8],
    last: u8,
    expected: &'static str,
) -> Result<(), FourBitError> {
    match codes.iter().position(|code| *code > last) {
        None => Ok(()),
        Some(index) => {
            let (tensor, found) = (weight.scales.name.clone(), format!("the code 0x{:02x}", codes[index]));
            Err(FourBitError::Scale { tensor, index, found, expected })
        }
    }
}

// compressed-tensors pads the inputs to whole words, and `weight_shape` has the number without
// padding. Padded weights are not supported.
/// Checks the `weight_shape` that compressed-tensors stores with packed quants.
fn check_stated(info: &TensorInfo, bytes: &[u8], shape: &[usize], packed: &str) -> Result<(), FourBitError> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let stated = bytes.chunks_exact(info.ty.block_bytes()).map(|bytes| number(bytes) as usize);
    let found: Vec<usize> = stated.collect();
    if found == shape {
        return Ok(());
    }
    Err(FourBitError::Stated {
        tensor: info.name.clone(),
        found,
        expected: shape.to_vec(),
        packed: packed.to_owned(),
    })
}
