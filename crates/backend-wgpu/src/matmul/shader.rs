//! Shaders of products: the key of a compiled shader, and its source.

use super::gemm::{GemmForm, GemmShader};
use super::gemv::GemvShader;
use super::items::{InputAccess, ProductEpilogue};
use super::layout::{BlockLayout, BlockQuants, BlockStorage, layout};
use super::tiles::{GATHER_THREADS, GemmTile, GemvTile, TRANSPOSED};
use super::wgsl::{ENTRY, constants, decoder, integer_decoder, section};
use crate::f16_values::F16Values;
use latent_types::TensorType;
use std::fmt::Write;

/// The kernel of a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProductShaderKind {
    /// Dequantizes rows of the weight, selected by their indices.
    Gather,
    /// Multiplies few rows.
    Gemv {
        /// Rows per workgroup.
        rows: usize,
        tile: GemvTile,
        /// Whether each row and slot has the id of its matrix.
        by_ids: bool,
        /// Minimum subgroup size, if lanes add their sums within subgroups.
        subgroup: Option<usize>,
        /// Number of iterations of each lane, if it is a constant: see [`GemvTile::turns`].
        turns: Option<usize>,
    },
    /// Multiplies many rows in tiles.
    Gemm {
        tile: GemmTile,
        /// Whether (row, slot) pairs are sorted by matrix.
        sorted: bool,
        form: GemmForm,
    },
    /// y = x · W instead of x · Wᵀ.
    Transposed {
        /// Rows per workgroup.
        rows: usize,
    },
}

/// The key of a compiled shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductShader {
    /// Format of the weight.
    pub(crate) format: TensorType,
    pub(crate) kernel: ProductShaderKind,
    pub(crate) storage: BlockStorage,
    pub(crate) inputs: InputAccess,
    /// Whether blocks of the weight's rows and columns have separate scales (FP8).
    pub(crate) block_scales: bool,
    /// The epilogue. Gather and transposed products have none.
    pub(crate) keep: ProductEpilogue,
}

/// A binding. Bindings are numbered in the order of [`ProductShader::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingSlot {
    /// Uniform with sizes.
    Params,
    /// Words of the weight's blocks.
    Weight,
    /// Inputs: f32, or words of int8 blocks.
    Input,
    /// f32 results.
    Output,
    /// f32 block scales.
    BlockScales,
    /// Rows of small integers.
    Codebook,
    /// u32: the weight's row of each result (gather), each row's expert (GEMV), or the pair of each
    /// sorted row (GEMM).
    Rows,
    /// Tiles of sorted rows, four u32 each: expert, first row, number of rows, 0.
    Tiles,
}

const INPUTS: &str = include_str!("wgsl/inputs.wgsl");

impl ProductShader {
    /// A name for logs and profiles: `gemv4_Q4_K`.
    pub(crate) fn name(&self) -> String {
        let (kernel, experts) = match self.kernel {
            ProductShaderKind::Gather => ("gather".to_owned(), false),
            ProductShaderKind::Gemv { rows, by_ids, subgroup, .. } => {
                (format!("gemv{rows}{}", if subgroup.is_some() { "_subgroups" } else { "" }), by_ids)
            }
            ProductShaderKind::Gemm { tile, sorted, form } => {
                let form = match form {
                    // The suffix of the inputs distinguishes integers from f32.
                    GemmForm::F32 | GemmForm::Integers => "",
                    GemmForm::F16 => "_f16",
                    GemmForm::Matrices(_) => "_matrices",
                };
                (format!("gemm{}{form}", tile.rows), sorted)
            }
            ProductShaderKind::Transposed { rows } => (format!("transposed{rows}"), false),
        };
        let integers = match self.inputs {
            InputAccess::Integers => "_int8",
            InputAccess::Quantized => "_to_int8",
            InputAccess::Elements | InputAccess::Vectors => "",
        };
        let (experts, keep) = (if experts { "_experts" } else { "" }, self.keep.suffix());
        format!("{kernel}{experts}{integers}{keep}_{}", self.format)
    }

    /// The layout of the format. None if shaders do not support it.
    pub(crate) fn layout(&self) -> Option<&'static BlockLayout> {
        layout(self.format)
    }

    /// The bindings in the order of their numbers.
    pub(crate) fn slots(&self) -> Vec<BindingSlot> {
        // Only what the kernel uses: every device allows just eight storage buffers.
        let mut slots = vec![BindingSlot::Params, BindingSlot::Weight];
        if self.kernel != ProductShaderKind::Gather {
            slots.push(BindingSlot::Input);
        }
        slots.push(BindingSlot::Output);
        if self.block_scales {
            slots.push(BindingSlot::BlockScales);
        }
        if self.layout().is_some_and(|layout| matches!(layout.quants, BlockQuants::Grid(_))) {
            slots.push(BindingSlot::Codebook);
        }
        match self.kernel {
            ProductShaderKind::Gather | ProductShaderKind::Gemv { by_ids: true, .. } => {
                slots.push(BindingSlot::Rows)
            }
            ProductShaderKind::Gemm { sorted: true, .. } => {
                slots.extend([BindingSlot::Rows, BindingSlot::Tiles])
            }
            _ => {}
        }
        slots
    }

    /// The source in WGSL. None for a format without a layout.
    pub(crate) fn wgsl(&self, f16_values: F16Values) -> Option<String> {
        let layout = self.layout()?;
        let mut source = String::new();
        // WGSL allows directives only before all declarations.
        match self.kernel {
            ProductShaderKind::Gemm { form: GemmForm::F16, .. } => source.push_str("enable f16;\n"),
            ProductShaderKind::Gemm { form: GemmForm::Matrices(matrix), .. } => {
                source.push_str(matrix.directives())
            }
            _ => {}
        }
        source.push_str(include_str!("wgsl/head.wgsl"));
        for (binding, slot) in self.slots().into_iter().enumerate() {
            let declaration = match slot {
                BindingSlot::Params => "var<uniform> p: Params",
                BindingSlot::Weight => "var<storage, read> weight: array<u32>",
                BindingSlot::Input => match self.inputs {
                    InputAccess::Elements => "var<storage, read> x: array<f32>",
                    InputAccess::Vectors | InputAccess::Quantized => "var<storage, read> x: array<vec4<f32>>",
                    InputAccess::Integers => "var<storage, read> x: array<u32>",
                },
                BindingSlot::Output => "var<storage, read_write> y: array<f32>",
                BindingSlot::BlockScales => "var<storage, read> block_scales: array<f32>",
                BindingSlot::Codebook => "var<storage, read> codebook: array<u32>",
                BindingSlot::Rows => "var<storage, read> rows: array<u32>",
                BindingSlot::Tiles => "var<storage, read> tiles: array<vec4<u32>>",
            };
            let _ = writeln!(source, "@group(0) @binding({binding}) {declaration};");
        }
        source.push('\n');
        decoder(&mut source, layout, self.storage, f16_values);
        source.push('\n');
        source.push_str(section(INPUTS, "places"));
        if self.inputs.is_integer() {
            integer_decoder(&mut source, layout, self.inputs);
        } else {
            self.octets(&mut source, layout);
        }
        // These two have no epilogue.
        if !matches!(self.kernel, ProductShaderKind::Gather | ProductShaderKind::Transposed { .. }) {
            source.push_str(self.keep.wgsl());
        }
        match self.kernel {
            ProductShaderKind::Gather => {
                constants(&mut source, [("THREADS", GATHER_THREADS)]);
                source.push_str(include_str!("wgsl/gather.wgsl"));
            }
            ProductShaderKind::Gemv { rows, tile, by_ids, subgroup, turns } => {
                let inputs = self.inputs;
                GemvShader { rows, tile, by_ids, subgroup, turns, inputs }.write(&mut source);
            }
            ProductShaderKind::Gemm { tile, sorted, form } => {
                GemmShader { tile, sorted, form, adds: layout.adds() }.write(&mut source);
            }
            ProductShaderKind::Transposed { rows } => transposed(&mut source, rows),
        }
        Some(source)
    }

    /// Appends the functions that read octets of weights and of f32 inputs.
    fn octets(&self, source: &mut String, layout: &BlockLayout) {
        source.push_str(section(INPUTS, "decode"));
        // Rows that are read element by element may end inside an octet.
        let tails = self.inputs == InputAccess::Elements;
        if tails || self.block_scales {
            source.push_str(section(INPUTS, "tails"));
        }
        source.push_str(section(
            INPUTS,
            match (self.block_scales, tails && layout.has_tails()) {
                (true, _) => "weights_scaled",
                (false, true) => "weights_tails",
                (false, false) => "weights",
            },
        ));
        // A transposed product reads single elements of the input.
        if !matches!(self.kernel, ProductShaderKind::Gather | ProductShaderKind::Transposed { .. }) {
            source.push_str(section(INPUTS, if tails { "elements" } else { "vectors" }));
        }
    }
}

const ACROSS: &str = include_str!("wgsl/transposed.wgsl");

/// Appends the kernel of a transposed product. Lanes divide the weight's rows, which are the
/// inputs.
fn transposed(source: &mut String, rows: usize) {
    let (octets, lanes) = (TRANSPOSED.octets, TRANSPOSED.lanes);
    let sizes = [("THREADS", octets * lanes), ("OCTETS", octets), ("LANES", lanes), ("ROWS", rows)];
    constants(source, sizes);
    source.push_str(section(ACROSS, "sums"));
    source.push_str(ENTRY);
    source.push_str(section(ACROSS, "begin"));
    for r in 0..rows {
        // Rows after the last one repeat it, so that loads stay inside the input. `reduce` does not
        // store their results.
        let _ = writeln!(source, "  let row_{r} = input_row(min(batch + {r}u, p.rows - 1u), slot);");
        let _ = writeln!(source, "  var sum_{r} = Octet(vec4<f32>(0.0), vec4<f32>(0.0));");
    }
    // The parameters describe the weight as for a plain product: its outputs are the inputs here.
    source.push_str("  for (var input = lane; input < p.outputs; input += LANES) {\n");
    source.push_str("    let w = weight_octet(matrix, input, octet);\n");
    for r in 0..rows {
        let _ = writeln!(source, "    sum_{r} = scaled_sum(sum_{r}, x[row_{r} + input], w);");
    }
    source.push_str("  }\n");
    for r in 0..rows {
        let _ = writeln!(source, "  reduce(sum_{r}, thread, batch + {r}u, slot, first);");
    }
    source.push_str("}\n");
}
