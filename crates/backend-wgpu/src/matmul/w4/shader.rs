//! Shaders of 4-bit weights.

use super::format::{ScaleKind, W4CodeKind};
use super::tiles::{W4_FUSED, W4Tile};
use crate::coop_matrix::CoopMatrix;
use crate::f16_values::F16Values;
use crate::matmul::gemm::GemmForm;
use crate::matmul::matrix_tile::{MATRICES, MatrixTile};
use crate::matmul::tile_order::TileOrder;
use crate::matmul::tiles::{GATHER_THREADS, PER_THREAD};
use crate::matmul::wgsl::{E4M3, ENTRY, constants, section};
use std::fmt::Write;

/// The kernel of a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum W4ShaderKind {
    /// `rows` rows per workgroup, with codes decoded in registers.
    Fused { rows: usize },
    /// Double-buffered tiles, for all of K or slices of it.
    Gemm { tile: W4Tile },
    /// Double-buffered tiles of f16, multiplied as cooperative matrices.
    Matrices { tile: W4Tile, matrix: CoopMatrix },
    /// Weights as f32.
    DequantF32,
    /// Weights as f16.
    DequantF16,
}

/// The key of a compiled shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct W4Shader {
    pub(crate) entry: W4ShaderKind,
    pub(crate) codes: W4CodeKind,
    pub(crate) scales: ScaleKind,
    /// Whether groups are whole words, so that all codes of a word have one scale.
    pub(crate) whole_groups: bool,
    /// Whether inputs are f16.
    pub(crate) f16: bool,
}

const HEAD: &str = include_str!("wgsl/head.wgsl");
const DECODE: &str = include_str!("wgsl/decode.wgsl");
const FUSED: &str = include_str!("wgsl/fused.wgsl");
const GEMM: &str = include_str!("wgsl/gemm.wgsl");
const W4_MATRICES: &str = include_str!("wgsl/gemm_matrices.wgsl");
const DEQUANT: &str = include_str!("wgsl/dequant.wgsl");
const ROWS: &str = include_str!("wgsl/rows.wgsl");

impl W4Shader {
    /// A name for logs and profiles.
    pub(crate) fn name(&self) -> String {
        let codes = self.codes.suffix();
        let entry = match self.entry {
            W4ShaderKind::Fused { rows } => format!("marlin_gemm_fused_{codes}_{rows}_rows"),
            W4ShaderKind::Gemm { tile } => format!("marlin_gemm_{codes}_{}_rows", tile.rows),
            W4ShaderKind::Matrices { tile, .. } => format!("marlin_gemm_{codes}_{}_rows_matrices", tile.rows),
            W4ShaderKind::DequantF32 => format!("dequant_{codes}_f32"),
            W4ShaderKind::DequantF16 => format!("dequant_{codes}_f16"),
        };
        let inputs = if self.f16 { "_f16" } else { "" };
        format!("{entry}{inputs}_{:?}_scales", self.scales).to_lowercase()
    }

    /// Whether it reads rows of inputs.
    pub(super) fn multiplies(&self) -> bool {
        !matches!(self.entry, W4ShaderKind::DequantF32 | W4ShaderKind::DequantF16)
    }

    /// The source in WGSL. Bindings: parameters, words, scales, zero points if the codes have them,
    /// inputs if the kernel multiplies, results.
    pub(crate) fn wgsl(&self, f16_values: F16Values) -> String {
        let mut source = String::new();
        // WGSL allows directives only before all declarations.
        if let W4ShaderKind::Matrices { matrix, .. } = self.entry {
            source.push_str(matrix.directives());
        }
        source.push_str(HEAD);
        let mut declarations = vec!["var<uniform> p: Params", "var<storage, read> words: array<u32>"];
        declarations.push("var<storage, read> scales: array<u32>");
        if self.codes == W4CodeKind::Int4 {
            declarations.push("var<storage, read> zeros: array<u32>");
        }
        if self.multiplies() {
            // A load has four inputs: four f32, or two words of two f16.
            declarations.push(match self.f16 {
                true => "var<storage, read> x: array<vec2<u32>>",
                false => "var<storage, read> x: array<vec4<f32>>",
            });
        }
        // f16 is written as words of two, because not every device has the type f16.
        declarations.push(match self.entry {
            W4ShaderKind::DequantF16 => "var<storage, read_write> y: array<u32>",
            _ => "var<storage, read_write> y: array<f32>",
        });
        for (binding, declaration) in declarations.into_iter().enumerate() {
            let _ = writeln!(source, "@group(0) @binding({binding}) {declaration};");
        }
        let scales = match self.scales {
            ScaleKind::F16 => "f16",
            ScaleKind::E8m0 => "e8m0",
            ScaleKind::E4m3 => "e4m3",
        };
        let (codes, zeros) = match self.codes {
            W4CodeKind::Fp4 => ("fp4", "no_zeros"),
            W4CodeKind::Int4 => ("int4", "zeros"),
            W4CodeKind::Int4Sym => ("int4_sym", "no_zeros"),
        };
        let groups = if self.whole_groups { "whole_groups" } else { "cut_groups" };
        match self.scales {
            ScaleKind::F16 => source.push_str(f16_values.wgsl()),
            ScaleKind::E8m0 => {}
            ScaleKind::E4m3 => source.push_str(E4M3),
        }
        for name in [codes, "values", scales, zeros, groups] {
            source.push_str(section(DECODE, name));
        }
        if self.multiplies() {
            source.push_str(section(DECODE, if self.f16 { "inputs_f16" } else { "inputs_f32" }));
        }
        match self.entry {
            W4ShaderKind::Fused { rows } => fused(&mut source, rows, groups),
            W4ShaderKind::Gemm { tile } => gemm(&mut source, tile),
            W4ShaderKind::Matrices { tile, matrix } => matrices(&mut source, tile, matrix),
            W4ShaderKind::DequantF32 | W4ShaderKind::DequantF16 => {
                constants(&mut source, [("THREADS", GATHER_THREADS)]);
                source.push_str(section(DEQUANT, "decoded"));
                if self.entry == W4ShaderKind::DequantF16 {
                    source.push_str(section(DEQUANT, "round"));
                }
                source.push_str(section(
                    DEQUANT,
                    if self.entry == W4ShaderKind::DequantF16 { "f16" } else { "f32" },
                ));
            }
        }
        source
    }
}

/// Elementwise operations on rows before and after products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum W4RowShader {
    /// Adds a value per column.
    Bias,
    /// Permutes columns of f32.
    SelectF32,
    /// Permutes columns of f16.
    SelectF16,
    /// Rounds f32 to f16.
    ToF16,
    /// Converts f16 to f32.
    ToF32,
}

impl W4RowShader {
    #[cfg(test)]
    pub(crate) const ALL: [W4RowShader; 5] = [
        W4RowShader::Bias,
        W4RowShader::SelectF32,
        W4RowShader::SelectF16,
        W4RowShader::ToF16,
        W4RowShader::ToF32,
    ];

    /// A name for logs and profiles.
    pub(crate) fn name(self) -> &'static str {
        match self {
            W4RowShader::Bias => "w4_bias",
            W4RowShader::SelectF32 => "w4_select_f32",
            W4RowShader::SelectF16 => "w4_select_f16",
            W4RowShader::ToF16 => "w4_to_f16",
            W4RowShader::ToF32 => "w4_to_f32",
        }
    }

    /// The source in WGSL.
    pub(crate) fn wgsl(self, f16_values: F16Values) -> String {
        let mut source = String::from(HEAD);
        source.push_str("@group(0) @binding(0) var<uniform> p: Params;\n");
        constants(&mut source, [("THREADS", GATHER_THREADS)]);
        match self {
            W4RowShader::ToF16 => source.push_str(section(DEQUANT, "round")),
            W4RowShader::ToF32 => source.push_str(f16_values.wgsl()),
            _ => {}
        }
        source.push_str(section(ROWS, self.name().trim_start_matches("w4_")));
        source.push_str(section(ROWS, "entry"));
        source
    }
}

/// The shader that adds the partial sums of slices.
pub(crate) fn reduce_source() -> String {
    let mut source = String::from(HEAD);
    constants(&mut source, [("THREADS", GATHER_THREADS)]);
    source.push_str(include_str!("wgsl/reduce.wgsl"));
    source
}

fn fused(source: &mut String, rows: usize, groups: &str) {
    let (columns, lanes) = (W4_FUSED.columns, W4_FUSED.lanes);
    let sizes = [("THREADS", columns * lanes), ("COLUMNS", columns), ("LANES", lanes), ("ROWS", rows)];
    constants(source, sizes);
    source.push_str(section(FUSED, "sums"));
    source.push_str(ENTRY);
    source.push_str(section(FUSED, "begin"));
    for r in 0..rows {
        // Rows after the last one repeat it, so that loads stay inside the input. Their results are
        // not stored.
        let _ = writeln!(source, "  let row_{r} = min(batch + {r}u, p.rows - 1u);\n  var sum_{r} = 0.0;");
    }
    source.push_str(section(FUSED, groups));
    for r in 0..rows {
        // Codes of a word in several groups have their scales applied in `w`, and `scale` is 1.
        let _ = writeln!(source, "    sum_{r} = fma(dot_octet(row_{r}, word, w), scale, sum_{r});");
    }
    source.push_str("  }\n");
    for r in 0..rows {
        let _ = writeln!(source, "  sums[{r}u * THREADS + thread] = sum_{r};");
    }
    source.push_str(section(FUSED, "reduce"));
}

/// Appends the kernel with cooperative matrices. The tiles of a step are filled while those of the
/// previous step are multiplied.
fn matrices(source: &mut String, tile: W4Tile, matrix: CoopMatrix) {
    let W4Tile { rows, columns, words } = tile;
    let sizes =
        [("TILE_ROWS", rows), ("TILE_OUTPUTS", columns), ("TILE_WORDS", words), ("TILE_INPUTS", words * 8)];
    constants(source, sizes);
    constants(source, [("THREADS", matrix.threads())]);
    let tile = MatrixTile { rows, outputs: columns, inputs: words * 8, matrix };
    tile.head(source);
    source.push_str(GemmForm::Matrices(matrix).element());
    source.push_str(section(W4_MATRICES, "memory"));
    source.push_str(section(MATRICES, "stash"));
    source.push_str(section(W4_MATRICES, "fill"));
    source.push_str(section(MATRICES, "entry"));
    source.push_str(section(W4_MATRICES, "first"));
    tile.begin(source);
    source.push_str(section(W4_MATRICES, "load"));
    tile.multiply(source, "buffer");
    // One barrier per step suffices: a step fills the buffer that the previous step has read.
    source.push_str("    workgroupBarrier();\n  }\n");
    tile.end(source, "first_row, first_column, slice");
    source.push_str("}\n");
    source.push_str(section(W4_MATRICES, "store"));
}

/// Appends the loads of a thread for step `step` into registers: words with their scales and zero
/// points, and four inputs.
fn fetch(source: &mut String, step: &str, words: usize, indent: &str) {
    for i in 0..words {
        let _ = write!(
            source,
            "{indent}word_at_{i} = begin + ({step}) * TILE_WORDS + (thread + {i}u * THREADS) / TILE_COLUMNS;
{indent}if word_at_{i} < end {{
{indent}  word_{i} = words[word_at_{i} * p.columns + column_{i}];
{indent}  let at = group_of(word_at_{i}, column_{i});
{indent}  scale_{i} = scale_at(at);
{indent}  zero_{i} = zero_at(at);
{indent}}}
"
        );
    }
    let _ = write!(
        source,
        "{indent}x_four = vec4<f32>(0.0);
{indent}x_word = begin + ({step}) * TILE_WORDS + x_quad / 2u;
{indent}if x_word < end {{
{indent}  x_four = four_inputs(x_at + x_word * 2u + x_quad % 2u);
{indent}}}
"
    );
}

/// Appends the decoding of the loaded words into a tile buffer. Words after the end of the slice
/// become zeros.
fn stash(source: &mut String, buffer: &str, words: usize, indent: &str) {
    for i in 0..words {
        let _ = write!(
            source,
            "{indent}if word_at_{i} < end {{
{indent}  stash_values({buffer} * TILE_COLUMNS + place_{i}, line_{i}, scaled_values(word_values(word_{i}), word_at_{i}, column_{i}, scale_{i}, zero_{i}));
{indent}}} else {{
{indent}  stash_values({buffer} * TILE_COLUMNS + place_{i}, line_{i}, Octet(vec4<f32>(0.0), vec4<f32>(0.0)));
{indent}}}
"
        );
    }
    let _ = writeln!(source, "{indent}x_tile[unit_at({buffer} * TILE_ROWS + x_row, x_quad)] = x_four;");
}

fn gemm(source: &mut String, tile: W4Tile) {
    let W4Tile { rows, columns, words } = tile;
    constants(
        source,
        [
            ("THREADS", tile.threads()),
            ("TILE_ROWS", rows),
            ("TILE_COLUMNS", columns),
            ("TILE_WORDS", words),
            ("TILE_INPUTS", words * 8),
            ("ROW_STEP", rows / PER_THREAD),
            ("OUTPUT_STEP", columns / PER_THREAD),
        ],
    );
    let order =
        TileOrder { units: words * 2, words: words * 8, steps: [rows / PER_THREAD, columns / PER_THREAD] };
    order.head(source);
    source.push_str(section(GEMM, "memory"));
    source.push_str(ENTRY);
    source.push_str(section(GEMM, "begin"));
    let per_thread = columns * words / tile.threads();
    for i in 0..per_thread {
        // Columns after the last one repeat it. `store` skips their results.
        let _ = write!(
            source,
            "  let place_{i} = (thread + {i}u * THREADS) % TILE_COLUMNS;
  let line_{i} = (thread + {i}u * THREADS) / TILE_COLUMNS;
  let column_{i} = min(first_column + place_{i}, p.columns - 1u);
  var word_at_{i} = end;
  var word_{i} = 0u;
  var scale_{i} = 0.0;
  var zero_{i} = 0.0;
"
        );
    }
    source.push_str("  var x_four = vec4<f32>(0.0);\n  var x_word = end;\n");
    fetch(source, "0u", per_thread, "  ");
    stash(source, "0u", per_thread, "  ");
    source.push_str(
        "  workgroupBarrier();\n  for (var step = 0u; step < steps; step++) {\n    let buffer = step % 2u;\n",
    );
    // The loads are issued before the products of the current step, which hide their latency.
    fetch(source, "step + 1u", per_thread, "    ");
    order.multiply(source, ["buffer * TILE_ROWS + ", "buffer * TILE_COLUMNS + "]);
    stash(source, "(1u - buffer)", per_thread, "    ");
    // One barrier per step suffices: a step fills the buffer that the previous step has read.
    source.push_str("    workgroupBarrier();\n  }\n");
    source.push_str(section(GEMM, "end"));
}
