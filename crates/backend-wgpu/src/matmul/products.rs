//! State shared by the products of a model: kernel variants, and the buffer of quantized inputs.

use super::gemm::GemmForm;
use super::items::ProductItems;
use super::layout::{BlockLayout, layout};
use super::limits::folded;
use super::wgsl::{INT8_BLOCK, constants};
use crate::buffers::{Buffer, largest_binding};
use crate::commands::{Commands, ShaderBinding};
use crate::device::Device;
use crate::error::GpuError;
use crate::matrix_trial;
use crate::variants::KernelVariants;
use latent_graph::passes::Precision;
use latent_types::{Setting, TensorType};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// State shared by the products of a model.
pub(crate) struct ProductContext {
    pub(super) device: Arc<Device>,
    pub(super) variants: KernelVariants,
    /// Quantized inputs. They are written before a product, and read by it and by directly
    /// following products with the same inputs.
    quantized: Mutex<QuantizedBuffer>,
}

#[derive(Default)]
struct QuantizedBuffer {
    buffer: Option<Buffer>,
    /// Its content after the calls up to this end of a list.
    holds: Option<(QuantizedSource, (u64, usize))>,
}

/// Identifies inputs that are quantized.
#[derive(Clone, PartialEq)]
struct QuantizedSource {
    binding: ShaderBinding,
    address: [u32; 3],
    rows: Range<usize>,
    slots: usize,
    inputs: usize,
}

/// Items whose inputs are int8 blocks.
pub(super) struct QuantizedItems {
    pub(super) items: ProductItems,
    source: QuantizedSource,
}

/// Elements per int8 block.
pub(super) const Q8_BLOCK: usize = 32;

/// Words of an int8 block: 32 quants and a scale.
const BLOCK_WORDS: usize = 9;

/// The buffer's name in errors.
fn quantized() -> String {
    format!("quantized inputs (a smaller {} takes less)", Setting::BatchTokens)
}

/// Threads per workgroup. Each quantizes one block.
const THREADS: usize = 64;

impl ProductContext {
    /// Creates the context for products in a precision, with the variants that the device supports
    /// for it or was opened with.
    pub(crate) fn new(device: &Arc<Device>, precision: Precision) -> Arc<ProductContext> {
        ProductContext::with(device, matrix_trial::variants(device, precision))
    }

    pub(crate) fn with(device: &Arc<Device>, variants: KernelVariants) -> Arc<ProductContext> {
        Arc::new(ProductContext { device: Arc::clone(device), variants, quantized: Mutex::default() })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether inputs are quantized for weights of a format without block scales.
    pub(super) fn takes_integers(&self, format: TensorType, inputs: usize) -> bool {
        let format = layout(format).is_some_and(BlockLayout::has_integers);
        // Rows of whole blocks: a block has one scale, and must not belong to two rows.
        self.variants.integers && format && inputs.is_multiple_of(Q8_BLOCK)
    }

    /// The form of a GEMM's tiles. Cooperative matrices are preferred, then int8, then f16.
    pub(super) fn gemm_form(&self, format: TensorType, integers: bool) -> GemmForm {
        // Only quantized weights are rounded to f16: plain ones may have more bits.
        let quantized = format.is_quantized();
        match self.variants.matrices {
            Some(matrix) if quantized || !matrix.f16 => GemmForm::Matrices(matrix),
            _ if integers => GemmForm::Integers,
            _ if self.variants.f16_tiles && quantized => GemmForm::F16,
            _ => GemmForm::F32,
        }
    }

    /// Maximum bytes of quantized inputs of products with weights of a format: for `rows` rows in a
    /// GEMM, or for up to `by_one` rows in a GEMV.
    pub(crate) fn quantized_bytes(
        &self,
        (format, inputs): (TensorType, usize),
        (rows, by_one): (usize, usize),
        slots: usize,
    ) -> u64 {
        if !self.takes_integers(format, inputs) {
            return 0;
        }
        // If a GEMM takes other inputs, only the few rows of a GEMV are quantized.
        let together = self.gemm_form(format, true) == GemmForm::Integers;
        let rows = if together { rows } else { rows.min(by_one) };
        let bytes = block_bytes(rows, slots, inputs);
        // `quantize` refuses inputs that exceed a buffer, and products then read f32.
        if bytes <= largest_binding(&self.device.limits) { bytes } else { 0 }
    }

    /// Allocates `bytes` bytes for quantized inputs in advance, so that steps do not allocate.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), GpuError> {
        if bytes > 0 {
            let made = Buffer::new(&self.device, &quantized(), bytes)?;
            let mut there = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
            *there = QuantizedBuffer { buffer: Some(made), holds: None };
        }
        Ok(())
    }

    /// Quantizes the inputs of items, and returns the items with blocks as inputs. None if the
    /// blocks exceed a buffer.
    pub(super) fn quantize(
        &self,
        commands: &mut Commands,
        items: &ProductItems,
        inputs: usize,
    ) -> Result<Option<QuantizedItems>, GpuError> {
        let [x, x_row, x_slot] = items.x.address;
        // With a slot stride of 0, all slots read the same elements, which are quantized once.
        let slots = if x_slot == 0 { 1 } else { items.slots };
        let row_blocks = inputs / Q8_BLOCK;
        let blocks = items.rows.len().saturating_mul(slots).saturating_mul(row_blocks);
        let bytes = block_bytes(items.rows.len(), slots, inputs);
        let address = |value: usize| u32::try_from(value).ok();
        let (Some(wide), Some(high), true) =
            (address(row_blocks), address(slots * row_blocks), bytes <= largest_binding(&self.device.limits))
        else {
            return Ok(None);
        };
        let (binding, rows) = (items.x.binding.clone(), items.rows.clone());
        let source = QuantizedSource { binding, address: items.x.address, rows, slots, inputs };
        let (to, there) = self.room(bytes, &source, commands.end())?;
        if !there {
            let words = [items.rows.start, items.rows.len(), slots, inputs].map(|value| value as u32);
            let params = [words[0], words[1], words[2], words[3], x, x_row, x_slot, 0];
            let pipeline = self.device.compiled("quantize", quantize_source())?;
            let groups = folded(blocks.div_ceil(THREADS), 1, &self.device)?;
            commands.call(&pipeline, [items.x.binding.clone(), to.clone()], &params, groups);
        }
        let mut items = items.clone();
        items.x.binding = to;
        // The blocks begin with row `rows.start`, but shaders add row · stride. The negative offset
        // compensates, since u32 arithmetic wraps in WGSL too.
        let offset = (items.rows.start as u32).wrapping_mul(high).wrapping_neg();
        items.x.address = [offset, high, if x_slot == 0 { 0 } else { wide }];
        Ok(Some(QuantizedItems { items, source }))
    }

    /// Records that the last call was a product of these items.
    pub(super) fn keep(&self, commands: &Commands, items: &QuantizedItems) {
        // Products do not write to the buffer of their inputs, so a directly following product can
        // use the same blocks.
        let mut there = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        there.holds = Some((items.source.clone(), commands.end()));
    }

    /// The buffer with at least `bytes` bytes, and whether it holds these inputs at this end of a
    /// list.
    fn room(
        &self,
        bytes: u64,
        source: &QuantizedSource,
        end: (u64, usize),
    ) -> Result<(ShaderBinding, bool), GpuError> {
        let mut there = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = there.buffer.as_ref().filter(|buffer| buffer.bytes() >= bytes) {
            // Only directly after that product: any later call may have written other inputs to the
            // same place.
            let holds = there.holds.as_ref().is_some_and(|(held, at)| held == source && *at == end);
            return Ok((ShaderBinding::from(buffer), holds));
        }
        // Recorded calls keep the replaced buffer alive.
        let made = Buffer::new(&self.device, &quantized(), bytes)?;
        let binding = ShaderBinding::from(&made);
        *there = QuantizedBuffer { buffer: Some(made), holds: None };
        Ok((binding, false))
    }
}

/// Bytes of the blocks of `rows` rows with `slots` slots each.
fn block_bytes(rows: usize, slots: usize, inputs: usize) -> u64 {
    let blocks = rows.saturating_mul(slots).saturating_mul(inputs / Q8_BLOCK);
    (blocks as u64).saturating_mul(4 * BLOCK_WORDS as u64)
}

/// The shader that quantizes.
pub(super) fn quantize_source() -> String {
    let mut source = String::new();
    constants(&mut source, [("THREADS", THREADS)]);
    source.push_str(INT8_BLOCK);
    source.push_str(include_str!("wgsl/quantize.wgsl"));
    source
}
