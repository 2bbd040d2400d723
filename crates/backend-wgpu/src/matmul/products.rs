//! What the products of a model share: the variants of their kernels, and memory for quantized inputs.

use super::items::Items;
use super::limits::folded;
use super::variants::Variants;
use super::wgsl::constants;
use crate::buffers::{Buffer, largest_binding};
use crate::commands::{Binding, Commands};
use crate::device::Device;
use crate::error::GpuError;
use latent_graph::passes::Precision;
use std::sync::{Arc, Mutex, PoisonError};

/// What the products of a model share.
pub(crate) struct Products {
    pub(super) device: Arc<Device>,
    pub(super) variants: Variants,
    /// Quantized inputs: written before each product, and read by it.
    quantized: Mutex<Option<Buffer>>,
}

/// Elements per int8 block.
pub(super) const Q8_BLOCK: usize = 32;

/// Words of an int8 block: 32 quants and a scale.
const BLOCK_WORDS: usize = 9;

/// Threads per workgroup, each for a block.
const THREADS: usize = 64;

impl Products {
    /// For products in a precision, with the variants that the device offers for it or was opened with.
    pub(crate) fn new(device: &Arc<Device>, precision: Precision) -> Arc<Products> {
        let variants = device.variants.unwrap_or_else(|| Variants::of(&device.description, precision));
        Arc::new(Products { device: Arc::clone(device), variants, quantized: Mutex::default() })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Quantizes the rows of items, and gives them in their place: blocks instead of elements. None where they are more than a buffer holds.
    pub(super) fn quantize(
        &self,
        commands: &mut Commands,
        items: &Items,
        inputs: usize,
    ) -> Result<Option<Items>, GpuError> {
        let [x, x_row, x_slot] = items.x.address;
        // slots of a row that share its elements share its blocks
        let slots = if x_slot == 0 { 1 } else { items.slots };
        let row_blocks = inputs / Q8_BLOCK;
        let blocks = items.rows.len().saturating_mul(slots).saturating_mul(row_blocks);
        let bytes = (blocks as u64).saturating_mul(4 * BLOCK_WORDS as u64);
        let address = |value: usize| u32::try_from(value).ok();
        let (Some(wide), Some(high), true) =
            (address(row_blocks), address(slots * row_blocks), bytes <= largest_binding(&self.device.limits))
        else {
            return Ok(None);
        };
        let to = self.room(bytes)?;
        let words = [items.rows.start, items.rows.len(), slots, inputs].map(|value| value as u32);
        let params = [words[0], words[1], words[2], words[3], x, x_row, x_slot, 0];
        let pipeline = self.device.compiled("quantize", quantize_source())?;
        let groups = folded(blocks.div_ceil(THREADS), 1, &self.device)?;
        commands.call(&pipeline, [items.x.binding.clone(), to.clone()], &params, groups);
        let mut quantized = items.clone();
        quantized.x.binding = to;
        // modulo 2^32, as shaders count
        let offset = (items.rows.start as u32).wrapping_mul(high).wrapping_neg();
        quantized.x.address = [offset, high, if x_slot == 0 { 0 } else { wide }];
        Ok(Some(quantized))
    }

    /// Memory for as many bytes. What is replaced lives on in the calls that were recorded with it.
    fn room(&self, bytes: u64) -> Result<Binding, GpuError> {
        let mut there = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = there.as_ref().filter(|buffer| buffer.bytes() >= bytes).map(Binding::from);
        if let Some(enough) = enough {
            return Ok(enough);
        }
        let made = Buffer::new(&self.device, "quantized inputs", bytes)?;
        let binding = Binding::from(&made);
        *there = Some(made);
        Ok(binding)
    }
}

/// The shader that quantizes.
pub(super) fn quantize_source() -> String {
    let mut source = String::new();
    constants(&mut source, [("THREADS", THREADS)]);
    source.push_str(include_str!("wgsl/quantize.wgsl"));
    source
}
