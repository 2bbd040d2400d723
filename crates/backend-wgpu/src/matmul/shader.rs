//! Shaders of products: what is compiled, as a key, and its source.

use super::layout::{Layout, Quants, layout};
use super::tiles::{GATHER_THREADS, GemmTile, GemvTile, PER_THREAD, TRANSPOSED};
use super::wgsl::{constants, decoder, section};
use latent_types::TensorType;
use std::fmt::Write;

/// What a shader computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
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
    },
    /// Rows times the weight, in tiles.
    Gemm {
        /// The tile.
        tile: GemmTile,
        /// Whether pairs of row and slot are sorted by matrix.
        sorted: bool,
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
    pub(crate) kernel: Kernel,
    /// Whether rows of inputs are whole octets at multiples of four elements.
    pub(crate) vectors: bool,
    /// Whether rectangles of the weight have factors (block scales of FP8).
    pub(crate) block_scales: bool,
}

/// What is bound. Bindings are numbered in the order of [`ProductShader::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
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
            Kernel::Gather => ("gather".to_owned(), false),
            Kernel::Gemv { rows, by_ids, .. } => (format!("gemv{rows}"), by_ids),
            Kernel::Gemm { tile, sorted } => (format!("gemm{}", tile.rows), sorted),
            Kernel::Transposed { rows } => (format!("transposed{rows}"), false),
        };
        format!("{kernel}{}_{}", if experts { "_experts" } else { "" }, self.format)
    }

    /// The layout of its format, if there is one.
    pub(crate) fn layout(&self) -> Option<&'static Layout> {
        layout(self.format)
    }

    /// What it binds, in the order of the indices.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let mut slots = vec![Slot::Params, Slot::Weight];
        if self.kernel != Kernel::Gather {
            slots.push(Slot::Input);
        }
        slots.push(Slot::Output);
        if self.block_scales {
            slots.push(Slot::BlockScales);
        }
        if self.layout().is_some_and(|layout| matches!(layout.quants, Quants::Grid(_))) {
            slots.push(Slot::Codebook);
        }
        match self.kernel {
            Kernel::Gather | Kernel::Gemv { by_ids: true, .. } => slots.push(Slot::Rows),
            Kernel::Gemm { sorted: true, .. } => slots.extend([Slot::Rows, Slot::Tiles]),
            _ => {}
        }
        slots
    }

    /// Its source in WGSL; none for a format without a layout.
    pub(crate) fn wgsl(&self) -> Option<String> {
        let layout = self.layout()?;
        let mut source = String::from(include_str!("wgsl/head.wgsl"));
        for (binding, slot) in self.slots().into_iter().enumerate() {
            let declaration = match slot {
                Slot::Params => "var<uniform> p: Params",
                Slot::Weight => "var<storage, read> weight: array<u32>",
                Slot::Input if self.vectors => "var<storage, read> x: array<vec4<f32>>",
                Slot::Input => "var<storage, read> x: array<f32>",
                Slot::Output => "var<storage, read_write> y: array<f32>",
                Slot::BlockScales => "var<storage, read> block_scales: array<f32>",
                Slot::Codebook => "var<storage, read> codebook: array<u32>",
                Slot::Rows => "var<storage, read> rows: array<u32>",
                Slot::Tiles => "var<storage, read> tiles: array<vec4<u32>>",
            };
            let _ = writeln!(source, "@group(0) @binding({binding}) {declaration};");
        }
        source.push('\n');
        decoder(&mut source, layout);
        source.push('\n');
        source.push_str(section(INPUTS, "decode"));
        source.push_str(section(INPUTS, "places"));
        let tails = !self.vectors;
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
        if !matches!(self.kernel, Kernel::Gather | Kernel::Transposed { .. }) {
            source.push_str(section(INPUTS, if self.vectors { "vectors" } else { "elements" }));
        }
        match self.kernel {
            Kernel::Gather => {
                constants(&mut source, [("THREADS", GATHER_THREADS)]);
                source.push_str(include_str!("wgsl/gather.wgsl"));
            }
            Kernel::Gemv { rows, tile, by_ids } => gemv(&mut source, rows, tile, by_ids),
            Kernel::Gemm { tile, sorted } => gemm(&mut source, tile, sorted),
            Kernel::Transposed { rows } => transposed(&mut source, rows),
        }
        Some(source)
    }
}

pub(super) const ENTRY: &str = "
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
";

/// All rows and outputs of a thread have variables of their own: an array that is indexed in a loop may end up in memory.
fn gemv(source: &mut String, rows: usize, tile: GemvTile, by_ids: bool) {
    let GemvTile { threads, lanes, outputs } = tile;
    constants(source, [("THREADS", threads), ("LANES", lanes), ("OUTPUTS", outputs), ("ROWS", rows)]);
    source.push_str(section(GEMV, "sums"));
    source.push_str(ENTRY);
    source.push_str(section(GEMV, if by_ids { "by_ids" } else { "per_slot" }));
    let all = || (0..rows).flat_map(|r| (0..outputs).map(move |o| (r, o)));
    for r in 0..rows {
        let _ = writeln!(source, "  let row_{r} = input_row(min(batch + {r}u, p.rows - 1u), slot);");
    }
    for o in 0..outputs {
        let _ = writeln!(source, "  let output_{o} = min(first + {o}u, p.outputs - 1u);");
    }
    for (r, o) in all() {
        let _ = writeln!(source, "  var sum_{r}_{o} = vec4<f32>(0.0);");
    }
    source.push_str("  for (var octet = lane; octet < octets; octet += LANES) {\n");
    for o in 0..outputs {
        let _ = writeln!(source, "    let w_{o} = weight_octet(matrix, output_{o}, octet);");
    }
    for r in 0..rows {
        let _ = writeln!(source, "    let x_{r} = input_octet(row_{r}, octet);");
        for o in 0..outputs {
            let _ = writeln!(source, "    sum_{r}_{o} = add_octet(sum_{r}_{o}, x_{r}, w_{o});");
        }
    }
    source.push_str("  }\n");
    for (r, o) in all() {
        let _ = writeln!(
            source,
            "  sums[{}u * THREADS + thread] = (sum_{r}_{o}.x + sum_{r}_{o}.y) + (sum_{r}_{o}.z + sum_{r}_{o}.w);",
            r * outputs + o
        );
    }
    source.push_str(section(GEMV, "reduce"));
}

const GEMV: &str = include_str!("wgsl/gemv.wgsl");
const ACROSS: &str = include_str!("wgsl/transposed.wgsl");
const GEMM: &str = include_str!("wgsl/gemm.wgsl");

fn gemm(source: &mut String, tile: GemmTile, sorted: bool) {
    constants(
        source,
        [
            ("THREADS", tile.threads()),
            ("TILE_ROWS", tile.rows),
            ("TILE_OUTPUTS", tile.outputs),
            ("TILE_OCTETS", tile.inputs / 8),
            ("TILE_INPUTS", tile.inputs),
            ("ROW_STEP", tile.rows / PER_THREAD),
            ("OUTPUT_STEP", tile.outputs / PER_THREAD),
        ],
    );
    source.push_str(section(GEMM, "memory"));
    source.push_str(ENTRY);
    source.push_str(section(GEMM, if sorted { "sorted" } else { "per_slot" }));
    source.push_str(section(GEMM, "load"));
    for i in 0..PER_THREAD {
        let _ = write!(
            source,
            "  if line + {i}u * ROW_STEP < count {{
    store(sum_{i}, result_place(first_row + line + {i}u * ROW_STEP, slot), first + column);
  }}
"
        );
    }
    source.push_str("}\n");
    source.push_str(section(GEMM, if sorted { "sorted_places" } else { "places" }));
    source.push_str(section(GEMM, "store"));
}

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
