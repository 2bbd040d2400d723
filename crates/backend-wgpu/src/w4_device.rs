//! Products with 4-bit weights for callers without a model (the marlin crate). Weights and rows
//! stay in device memory.

use crate::adapters::AdapterDescription;
use crate::buffers::{Buffer, floats, word_bytes};
use crate::commands::Commands;
use crate::device::Device;
use crate::error::GpuError;
use crate::matmul::rows::BufferRows;
use crate::matmul::w4::{
    W4_GEMM, W4CodeKind, W4Inputs, W4Operand, W4RowShader, W4Weight, W4WeightShape, dequant, fused, gemm,
    map_rows, striped,
};
use crate::memory::SCRATCH;
use crate::portions::PORTION;
use std::sync::Arc;

/// A device for products.
#[derive(Clone)]
pub struct W4Device(Arc<Device>);

/// The kernel of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4DeviceKernel {
    /// For many rows: double-buffered tiles, of which one is filled while the other is multiplied.
    Gemm,
    /// For few rows: codes are decoded in registers.
    Fused,
    /// For few output tiles: K is cut into slices (split-K), whose partial sums are added in order.
    Striped {
        /// Number of slices, from 1 to K / 8.
        slices: usize,
    },
}

impl W4DeviceKernel {
    /// The kernel's name for a kind of codes.
    pub fn name(self, codes: W4CodeKind) -> &'static str {
        match (self, codes) {
            (W4DeviceKernel::Gemm, W4CodeKind::Fp4) => "marlin_gemm_fp4",
            (W4DeviceKernel::Gemm, W4CodeKind::Int4) => "marlin_gemm_u4",
            (W4DeviceKernel::Gemm, W4CodeKind::Int4Sym) => "marlin_gemm_s4",
            (W4DeviceKernel::Fused, W4CodeKind::Fp4) => "marlin_gemm_fused_fp4",
            (W4DeviceKernel::Fused, W4CodeKind::Int4) => "marlin_gemm_fused_u4",
            (W4DeviceKernel::Fused, W4CodeKind::Int4Sym) => "marlin_gemm_fused_s4",
            (W4DeviceKernel::Striped { .. }, W4CodeKind::Fp4) => "marlin_gemm_fp4_striped",
            (W4DeviceKernel::Striped { .. }, W4CodeKind::Int4) => "marlin_gemm_u4_striped",
            (W4DeviceKernel::Striped { .. }, W4CodeKind::Int4Sym) => "marlin_gemm_s4_striped",
        }
    }
}

/// Row elements on the host.
#[derive(Clone, Copy, Debug)]
pub enum W4Elements<'a> {
    F32(&'a [f32]),
    /// Bits of f16.
    F16(&'a [u16]),
}

impl W4Elements<'_> {
    fn len(&self) -> usize {
        match self {
            W4Elements::F32(numbers) => numbers.len(),
            W4Elements::F16(bits) => bits.len(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        fn copied<const N: usize>(mut bytes: Vec<u8>, elements: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
            bytes.as_chunks_mut().0.iter_mut().zip(elements).for_each(|(to, element)| *to = element);
            bytes
        }
        match self {
            W4Elements::F32(numbers) => {
                copied(vec![0; 4 * numbers.len()], numbers.iter().map(|number| number.to_le_bytes()))
            }
            W4Elements::F16(bits) => {
                copied(vec![0; 2 * bits.len()], bits.iter().map(|bits| bits.to_le_bytes()))
            }
        }
    }
}

/// Rows of f32 or f16 in device memory. Rows of f16 begin at whole words.
pub struct W4Rows {
    buffer: Buffer,
    rows: usize,
    columns: usize,
    f16: bool,
}

/// A 4-bit weight in device memory.
pub struct W4Resident {
    device: Arc<Device>,
    shape: W4WeightShape,
    codes: W4CodeKind,
    /// None if it has no elements.
    weight: Option<W4Weight>,
    /// The index of the input that each row along K is multiplied by (GPTQ's `g_idx` order). None
    /// if the rows are in order.
    order: Option<Buffer>,
    /// Maximum arithmetic operations per submission.
    portion: f64,
}

impl W4Device {
    /// Opens the adapter at this index of [`adapters`](crate::adapters).
    ///
    /// # Errors
    /// If it does not exist, if it lacks a capability that shaders need, or if the driver fails.
    pub fn open(index: usize) -> Result<W4Device, GpuError> {
        Device::open(index).map(W4Device)
    }

    pub fn adapter(&self) -> &AdapterDescription {
        &self.0.description
    }

    /// Whether the device works: it was not lost.
    pub fn is_usable(&self) -> bool {
        self.0.alive().is_ok()
    }

    /// Device memory in use by weights and rows, in bytes.
    pub fn memory_in_use(&self) -> u64 {
        self.0.in_use()
    }

    /// Limits the memory of weights and rows to `bytes`.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.0.set_memory_limit(bytes);
    }

    /// Uploads a weight. With an `order`, row k along K is multiplied by input `order[k]`.
    ///
    /// # Errors
    /// If operands do not match the shape, if the order has an index outside of the inputs, or if
    /// memory is too small.
    pub fn upload(&self, operand: &W4Operand<'_>, order: Option<&[u32]>) -> Result<W4Resident, GpuError> {
        let W4WeightShape { k, n, .. } = operand.shape;
        if let Some(order) = order
            && (order.len() != k || order.iter().any(|input| *input as usize >= k))
        {
            return Err(refused(&self.0, "an order of inputs", format!("it is not one of {k} inputs")));
        }
        let weight =
            // `W4Weight::upload` refuses a weight without elements.
            (k > 0 && n > 0).then(|| W4Weight::upload(&self.0, "a 4-bit weight", operand)).transpose()?;
        let order = order.map(|order| Buffer::with(&self.0, "an order of inputs", &word_bytes(order)));
        Ok(W4Resident {
            device: Arc::clone(&self.0),
            shape: operand.shape,
            codes: operand.codes,
            weight,
            order: order.transpose()?,
            portion: PORTION,
        })
    }

    /// Uploads rows. Rows of f16 must have an even number of columns, since shaders read whole
    /// words.
    pub fn rows(&self, elements: W4Elements<'_>, rows: usize, columns: usize) -> Result<W4Rows, GpuError> {
        let f16 = matches!(elements, W4Elements::F16(_));
        if rows.checked_mul(columns) != Some(elements.len()) || (f16 && !columns.is_multiple_of(2)) {
            let problem = format!("{} elements for {rows} rows of {columns}", elements.len());
            return Err(refused(&self.0, "sending rows", problem));
        }
        let buffer = Buffer::with(&self.0, "rows", &elements.bytes())?;
        Ok(W4Rows { buffer, rows, columns, f16 })
    }

    fn empty(&self, what: &str, rows: usize, columns: usize, f16: bool) -> Result<W4Rows, GpuError> {
        let words = rows.checked_mul(if f16 { columns.div_ceil(2) } else { columns });
        let bytes = words.and_then(|words| u64::try_from(words).ok()).and_then(|words| words.checked_mul(4));
        // A size that overflows becomes one that no device allows, so that the error names the
        // buffer. It is not the maximum, because sizes are rounded up to whole words.
        let buffer = Buffer::new(&self.0, what, bytes.unwrap_or(u64::MAX - 16))?;
        Ok(W4Rows { buffer, rows, columns, f16 })
    }
}

impl W4Rows {
    /// Number of rows and of columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Whether elements are f16.
    pub fn is_f16(&self) -> bool {
        self.f16
    }

    fn device(&self) -> W4Device {
        W4Device(Arc::clone(self.buffer.device()))
    }

    /// Whether the rows are in the memory of this device.
    pub fn is_of(&self, device: &W4Device) -> bool {
        Arc::ptr_eq(self.buffer.device(), &device.0)
    }

    fn stride(&self) -> usize {
        if self.f16 { self.columns.div_ceil(2) } else { self.columns }
    }

    fn words(&self) -> BufferRows {
        BufferRows::new(&self.buffer, self.stride())
    }

    fn read(&self) -> Result<Vec<u8>, GpuError> {
        self.buffer.read("rows", 0..4 * (self.rows * self.stride()) as u64)
    }

    /// Waits for the elements and reads them. Elements of f16 are converted to f32.
    pub fn read_f32(&self) -> Result<Vec<f32>, GpuError> {
        if self.f16 { self.to_f32()?.read_f32() } else { Ok(floats(&self.read()?)) }
    }

    /// Waits for the elements and reads them as bits of f16. Elements of f32 are rounded.
    pub fn read_f16(&self) -> Result<Vec<u16>, GpuError> {
        if !self.f16 {
            return self.to_f16()?.read_f16();
        }
        let bytes = self.read()?;
        // `chunks_exact` refuses chunks of 0 bytes, which rows without columns would be.
        let rows = bytes.chunks_exact((4 * self.stride()).max(1));
        // With an odd number of columns, the last word of a row has an unused half.
        let halves = rows.flat_map(|row| row.as_chunks().0.iter().take(self.columns));
        Ok(halves.map(|half| u16::from_le_bytes(*half)).collect())
    }

    /// Converts to f16, rounded to nearest even.
    pub fn to_f16(&self) -> Result<W4Rows, GpuError> {
        self.mapped(true, W4RowShader::ToF16)
    }

    /// Converts to f32.
    pub fn to_f32(&self) -> Result<W4Rows, GpuError> {
        self.mapped(false, W4RowShader::ToF32)
    }

    fn mapped(&self, f16: bool, map: W4RowShader) -> Result<W4Rows, GpuError> {
        let device = self.device();
        let to = device.empty("rows", self.rows, self.columns, f16)?;
        let mut commands = Commands::new(&device.0);
        // Copied even without a conversion: the caller gets an array of its own.
        if self.f16 == f16 {
            let bytes = 4 * (self.rows * self.stride()) as u64;
            if bytes > 0 {
                commands.copy(&self.buffer, 0..bytes, &to.buffer, 0);
            }
        } else {
            let from = self.words();
            let shape = (self.rows, self.columns);
            map_rows(&mut commands, map, shape, [from.binding], (from.stride, &to.words()))?;
        }
        commands.submit(&[])?;
        Ok(to)
    }
}

impl W4Resident {
    pub fn shape(&self) -> W4WeightShape {
        self.shape
    }

    pub fn codes(&self) -> W4CodeKind {
        self.codes
    }

    pub fn device(&self) -> W4Device {
        W4Device(Arc::clone(&self.device))
    }

    /// Computes x · W, plus the bias of each column if given. Returns after submission: reading the
    /// result waits for it.
    ///
    /// # Errors
    /// If rows are of another device or length, if slices are not from 1 to K / 8, if memory is too
    /// small, or if the device fails.
    pub fn multiply(
        &self,
        kernel: W4DeviceKernel,
        x: &W4Rows,
        bias: Option<&W4Rows>,
    ) -> Result<W4Rows, GpuError> {
        let (device, W4WeightShape { k, n, .. }) = (self.device(), self.shape);
        let wrong = |problem: String| Err(refused(&self.device, "a 4-bit product", problem));
        if x.columns != k || !x.is_of(&device) {
            return wrong(format!("rows of {} inputs, or of another device, for a weight of {k}", x.columns));
        }
        if let Some(bias) = bias
            // The bias is added to the results, which are f32 for inputs of either type.
            && (bias.shape() != (1, n) || bias.f16 || !bias.is_of(&device))
        {
            return wrong(format!("a bias of {:?} for {n} columns, or of another device", bias.shape()));
        }
        if let W4DeviceKernel::Striped { slices } = kernel
            // A slice has at least one word, which is eight codes along K.
            && (slices == 0 || slices > (k / 8).max(1))
        {
            return wrong(format!("{slices} slices of {k} inputs"));
        }
        let y = device.empty("the result", x.rows, n, false)?;
        if x.rows == 0 || n == 0 {
            return Ok(y);
        }
        // Inputs are copied in the order of the weight's rows first, so that kernels read both one
        // after the other.
        let selected = self.order.as_ref().map(|order| self.selected(order, x)).transpose()?;
        let x = selected.as_ref().unwrap_or(x);
        let height = self.pass_rows(kernel).min(x.rows);
        let partials = match kernel {
            W4DeviceKernel::Striped { slices } => {
                let bytes = slices.saturating_mul(height).saturating_mul(n).saturating_mul(4);
                Some((Buffer::new(&self.device, "partial sums", bytes as u64)?, slices))
            }
            _ => None,
        };
        let mut before = None;
        for first in (0..x.rows).step_by(height) {
            let rows = height.min(x.rows - first);
            let mut commands = Commands::new(&self.device);
            let from = BufferRows { first: first * k, ..BufferRows::new(&x.buffer, k) };
            let inputs = W4Inputs { rows: &from, f16: x.f16 };
            let to = BufferRows { first: first * n, ..BufferRows::new(&y.buffer, n) };
            // Without inputs (K = 0) the result is 0, as the new buffer is.
            if let Some(weight) = &self.weight {
                match (&partials, kernel) {
                    (Some((partials, slices)), _) => {
                        striped(&mut commands, weight, (inputs, rows), (partials, *slices), &to)?;
                    }
                    (None, W4DeviceKernel::Fused) => fused(&mut commands, weight, inputs, &to, rows)?,
                    (None, _) => gemm(&mut commands, weight, inputs, &to, rows)?,
                }
            }
            if let Some(bias) = bias {
                map_rows(&mut commands, W4RowShader::Bias, (rows, n), [(&bias.buffer).into()], (0, &to))?;
            }
            let submitted = commands.submit_portion()?;
            // The device works on one pass while the host records the next.
            if let Some(before) = before.replace(submitted) {
                self.device.wait_for(before)?;
            }
        }
        Ok(y)
    }

    /// Rows per submission.
    fn pass_rows(&self, kernel: W4DeviceKernel) -> usize {
        let W4WeightShape { k, n, .. } = self.shape;
        // Whole tiles, so that only the last pass may have a partial one.
        let tile = 2 * W4_GEMM[W4_GEMM.len() - 1].rows;
        // Drivers reset a device that works on one submission for seconds.
        let by_time = (self.portion / (2.0 * k.max(1) as f64 * n.max(1) as f64)) as usize;
        // The partial sums of all slices must fit scratch memory.
        let by_memory = match kernel {
            W4DeviceKernel::Striped { slices } => SCRATCH as usize / 4 / slices.saturating_mul(n).max(1),
            _ => usize::MAX,
        };
        (by_time.min(by_memory) / tile * tile).max(tile)
    }

    /// Copies the inputs in the order of the weight's rows.
    fn selected(&self, order: &Buffer, x: &W4Rows) -> Result<W4Rows, GpuError> {
        let to = self.device().empty("inputs", x.rows, x.columns, x.f16)?;
        let map = if x.f16 { W4RowShader::SelectF16 } else { W4RowShader::SelectF32 };
        let mut commands = Commands::new(&self.device);
        let operands = [order.into(), (&x.buffer).into()];
        map_rows(&mut commands, map, (x.rows, x.columns), operands, (0, &to.words()))?;
        commands.submit(&[])?;
        Ok(to)
    }

    /// The weight's values `[K, N]` in the stored order, in f32 or f16 (rounded to nearest even).
    pub fn dequantize(&self, f16: bool) -> Result<W4Rows, GpuError> {
        let values = self.device().empty("the dequantized weight", self.shape.k, self.shape.n, f16)?;
        if let Some(weight) = &self.weight {
            let mut commands = Commands::new(&self.device);
            dequant(&mut commands, weight, f16, &values.words())?;
            commands.submit(&[])?;
        }
        Ok(values)
    }
}

fn refused(device: &Arc<Device>, what: &str, problem: String) -> GpuError {
    GpuError::Refused { device: device.name().to_owned(), what: what.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::w4::GroupScales;
    use crate::testing::device;

    /// A product in several passes has the same bits as in one.
    #[test]
    fn long_products_run_in_passes_with_the_same_bits() {
        let Some(device) = device().map(W4Device) else { return };
        let (m, k, n) = (130, 72, 67);
        let shape = W4WeightShape { k, n, group: 24 };
        let words: Vec<u32> = (0..k / 8 * n).map(|i| (i as u32).wrapping_mul(2_654_435_761)).collect();
        let scales: Vec<u8> = (0..3 * n).map(|i| 120 + (i % 9) as u8).collect();
        let scales = GroupScales::E8m0(&scales);
        let operand = W4Operand { shape, words: &words, scales, codes: W4CodeKind::Fp4, zeros: &[] };
        let order: Vec<u32> = (0..72).rev().collect();
        let mut weight = device.upload(&operand, Some(&order)).unwrap();
        let x: Vec<f32> = (0..m * k).map(|i| (i % 23) as f32 - 11.0).collect();
        let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let bias = device.rows(W4Elements::F32(&bias), 1, n).unwrap();
        let wide = device.rows(W4Elements::F32(&x), m, k).unwrap();
        let halves = wide.to_f16().unwrap();
        for x in [&wide, &halves] {
            for kernel in [W4DeviceKernel::Gemm, W4DeviceKernel::Fused, W4DeviceKernel::Striped { slices: 4 }]
            {
                let read = |weight: &W4Resident| {
                    let lists = device.0.lists.load(std::sync::atomic::Ordering::Relaxed);
                    let found = weight.multiply(kernel, x, Some(&bias)).unwrap().read_f32().unwrap();
                    (found, device.0.lists.load(std::sync::atomic::Ordering::Relaxed) - lists)
                };
                weight.portion = PORTION;
                let (whole, lists) = read(&weight);
                // One list selects the inputs, one multiplies.
                assert_eq!(lists, 2);
                weight.portion = 1.0;
                let (passes, lists) = read(&weight);
                assert_eq!(lists, 4, "three passes of 64 rows");
                assert!(whole.iter().any(|sum| *sum != 0.0) && whole == passes, "{kernel:?}");
            }
        }
    }
}
