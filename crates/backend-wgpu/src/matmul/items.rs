//! Operands of products: slots of rows in buffers.

#[cfg(any(test, feature = "cases"))]
use crate::buffers::Buffer;
use crate::commands::ShaderBinding;
use std::ops::Range;

/// The address of rows of f32: element `offset + row · row_stride + slot · slot_stride` of the
/// binding, modulo 2^32.
#[derive(Clone)]
pub(crate) struct RowAddress {
    pub(crate) binding: ShaderBinding,
    /// Offset, row stride and slot stride.
    pub(crate) address: [u32; 3],
}

impl RowAddress {
    /// Contiguous rows of `slots` slots of `width` elements.
    #[cfg(any(test, feature = "cases"))]
    pub(crate) fn rows(buffer: &Buffer, slots: usize, width: usize) -> RowAddress {
        RowAddress {
            binding: ShaderBinding::from(buffer),
            address: [0, (slots * width) as u32, width as u32],
        }
    }

    /// The address from a slot on, and within each row from an element on.
    pub(super) fn past(&self, slot: usize, element: usize) -> RowAddress {
        let [offset, row, stride] = self.address;
        // Wrapping, like u32 arithmetic in shaders: offsets may be negative.
        let offset = offset.wrapping_add((slot as u32).wrapping_mul(stride)).wrapping_add(element as u32);
        RowAddress { binding: self.binding.clone(), address: [offset, row, stride] }
    }
}

/// The access to inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InputAccess {
    /// Single f32 elements.
    Elements,
    /// Vectors of four f32. Rows are whole octets and begin at multiples of four elements.
    Vectors,
    /// int8 blocks.
    Integers,
    /// Vectors of f32 that the kernel quantizes to int8. Four lanes of a subgroup share a block.
    Quantized,
}

impl InputAccess {
    /// Whether products are those of int8.
    pub(super) fn is_integer(self) -> bool {
        matches!(self, InputAccess::Integers | InputAccess::Quantized)
    }
}

/// The operation that combines a product's sum with the result's previous value `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProductEpilogue {
    /// y ← sum.
    Store,
    /// y ← y + factor · sum.
    Add,
    /// y ← silu(y) · sum.
    SiluMul,
    /// y ← max(sum, 0)².
    Relu2,
}

impl ProductEpilogue {
    /// The WGSL function `keep(at: u32, sum: f32)`.
    pub(super) fn wgsl(self) -> &'static str {
        match self {
            ProductEpilogue::Store => "fn keep(at: u32, sum: f32) {\n  y[at] = sum;\n}\n",
            ProductEpilogue::Add => "fn keep(at: u32, sum: f32) {\n  y[at] += p.factor * sum;\n}\n",
            ProductEpilogue::SiluMul => {
                "fn keep(at: u32, sum: f32) {\n  let gate = y[at];\n  y[at] = gate / (1.0 + exp(-gate)) * sum;\n}\n"
            }
            ProductEpilogue::Relu2 => {
                "fn keep(at: u32, sum: f32) {\n  y[at] = max(sum, 0.0) * max(sum, 0.0);\n}\n"
            }
        }
    }

    /// The suffix of a shader's name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            ProductEpilogue::Store => "",
            ProductEpilogue::Add => "_add",
            ProductEpilogue::SiluMul => "_silu_mul",
            ProductEpilogue::Relu2 => "_relu2",
        }
    }
}

/// The items of a product: slots (heads or experts) of rows. Each item is as wide as the weight's
/// inputs. The buffers of inputs and of results must differ.
#[derive(Clone)]
pub(crate) struct ProductItems {
    pub(crate) rows: Range<usize>,
    pub(crate) slots: usize,
    pub(crate) x: RowAddress,
    pub(crate) y: RowAddress,
}
