//! Shaders of products: what is compiled, as a key, and its source.

use super::gemm::{GemmForm, GemmShader};
use super::gemv::GemvShader;
use super::items::{InputAccess, ProductEpilogue};
use super::layout::{BlockLayout, BlockQuants, BlockStorage, layout};
use super::tiles::{GATHER_THREADS, GemmTile, GemvTile, TRANSPOSED};
use super::wgsl::{ENTRY, constants, decoder, integer_decoder, section};
use crate::f16_values::F16Values;
use latent_types::TensorType;
use std::fmt::Write;

/// What a shader computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProductShaderKind {
    /// Rows of the weight as f32, picked by their indices.
    Gather,
    /// Few rows times the weight.
    Gemv {
        /// Rows per workgroup.
        rows: usize,
        /// Threads and outputs.
        tile: GemvTile,
        /// Whether each row and slot names its matrix.
        by_ids: bool,
        /// The smallest subgroup, where subgroups add the sums of their lanes.
        subgroup: Option<usize>,
        /// Turns of each lane, where these are unrolled: see [`GemvTile::turns`].
        turns: Option<usize>,
    },
    /// Rows times the weight, in tiles.
    Gemm {
        tile: GemmTile,
        /// Whether pairs of row and slot are sorted by matrix.
        sorted: bool,
        /// What the tile holds.
        form: GemmForm,
    },
    /// Rows times the weight's rows rather than its columns: y = x · W.
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
    /// What is computed.
    pub(crate) kernel: ProductShaderKind,
    /// How it is stored.
    pub(crate) storage: BlockStorage,
    /// How inputs are read.
    pub(crate) inputs: InputAccess,
    /// Whether rectangles of the weight have factors (block scales of FP8).
    pub(crate) block_scales: bool,
    /// What becomes of sums, other than those of a gather or a transposed product.
    pub(crate) keep: ProductEpilogue,
}

/// What is bound. Bindings are numbered in the order of [`ProductShader::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingSlot {
    /// Uniform: sizes.
    Params,
    /// Words of the weight's blocks.
    Weight,
    /// f32 inputs.
    Input,
    /// f32 results.
    Output,
    /// f32 factors of rectangles.
    BlockScales,
    /// Rows of small integers.
    Codebook,
    /// u32: the weight's row of each result (gather), each row's expert (GEMV), or the pair of each sorted row (GEMM).
    Rows,
    /// Tiles of sorted rows: four u32 each, expert, first row, rows, 0.
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

    /// The layout of its format, if there is one.
    pub(crate) fn layout(&self) -> Option<&'static BlockLayout> {
        layout(self.format)
    }

    /// What it binds, in the order of the indices.
    pub(crate) fn slots(&self) -> Vec<BindingSlot> {
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

    /// Its source in WGSL; none for a format without a layout.
    pub(crate) fn wgsl(&self, f16_values: F16Values) -> Option<String> {
        let layout = self.layout()?;
        let mut source = String::new();
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

    /// Functions that give octets of weights and of f32 inputs.
    fn octets(&self, source: &mut String, layout: &BlockLayout) {
        source.push_str(section(INPUTS, "decode"));
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
        // transposed, elements of the input are read one by one
        if !matches!(self.kernel, ProductShaderKind::Gather | ProductShaderKind::Transposed { .. }) {
            source.push_str(section(INPUTS, if tails { "elements" } else { "vectors" }));
        }
    }
}

const ACROSS: &str = include_str!("wgsl/transposed.wgsl");

/// Lanes share the weight's rows, which are the inputs.
fn transposed(source: &mut String, rows: usize) {
    let (octets, lanes) = (TRANSPOSED.octets, TRANSPOSED.lanes);
    let sizes = [("THREADS", octets * lanes), ("OCTETS", octets), ("LANES", lanes), ("ROWS", rows)];
    constants(source, sizes);
    source.push_str(section(ACROSS, "sums"));
    source.push_str(ENTRY);
    source.push_str(section(ACROSS, "begin"));
    for r in 0..rows {
        let _ = writeln!(source, "  let row_{r} = input_row(min(batch + {r}u, p.rows - 1u), slot);");
        let _ = writeln!(source, "  var sum_{r} = Octet(vec4<f32>(0.0), vec4<f32>(0.0));");
    }
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
