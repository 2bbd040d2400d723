//! Operands of products: slots of rows in buffers.

#[cfg(any(test, feature = "cases"))]
use crate::buffers::Buffer;
use crate::commands::ShaderBinding;
use std::ops::Range;

/// Where rows of f32 are: element `offset + row · row_stride + slot · slot_stride` of what is bound, modulo 2^32.
#[derive(Clone)]
pub(crate) struct RowAddress {
    /// What is bound.
    pub(crate) binding: ShaderBinding,
    /// Offset, and strides of rows and of slots.
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

    /// The same from a slot on, and in each row from an element on.
    pub(super) fn past(&self, slot: usize, element: usize) -> RowAddress {
        let [offset, row, stride] = self.address;
        // modulo 2^32, as shaders count
        let offset = offset.wrapping_add((slot as u32).wrapping_mul(stride)).wrapping_add(element as u32);
        RowAddress { binding: self.binding.clone(), address: [offset, row, stride] }
    }
}

/// How inputs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InputAccess {
    /// f32, one by one.
    Elements,
    /// f32, four at a time: rows are whole octets at multiples of four elements.
    Vectors,
    /// int8 blocks.
    Integers,
    /// f32 as `Vectors`, which the kernel quantizes to int8 blocks: four lanes of a subgroup share a block.
    Quantized,
}

impl InputAccess {
    /// Whether products are those of int8.
    pub(super) fn is_integer(self) -> bool {
        matches!(self, InputAccess::Integers | InputAccess::Quantized)
    }
}

/// What becomes of the sum of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProductEpilogue {
    /// It is the result.
    Store,
    /// Times a factor, it is added to what is there.
    Add,
    /// It is multiplied by silu of what is there.
    SiluMul,
    /// The square of what is above 0 of it is the result.
    Relu2,
}

impl ProductEpilogue {
    /// `fn keep(at: u32, sum: f32)`.
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

    /// Behind the name of a shader.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            ProductEpilogue::Store => "",
            ProductEpilogue::Add => "_add",
            ProductEpilogue::SiluMul => "_silu_mul",
            ProductEpilogue::Relu2 => "_relu2",
        }
    }
}

/// What is multiplied: slots (heads, or experts) of rows, which are all inputs of the weight wide, and where their results go. Buffers of inputs and of results are
/// not the same.
#[derive(Clone)]
pub(crate) struct ProductItems {
    pub(crate) rows: Range<usize>,
    pub(crate) slots: usize,
    pub(crate) x: RowAddress,
    pub(crate) y: RowAddress,
}
