//! The WGSL dialect: constants of the tables in front of texts that use them.

use super::layout::{Float, Grid, Layout, Meaning, Plane, Quants, Scales, Storage};
use crate::f16_values::F16Values;
use latent_quant::e2m1::DOUBLED;
use std::fmt::Write;

/// A text cut at lines `//= name`.
pub(super) fn section(text: &'static str, name: &str) -> &'static str {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("//= ") {
        let Some((title, body)) = after.split_once('\n') else { break };
        if title == name {
            return body.split_once("//= ").map_or(body, |(body, _)| body);
        }
        rest = after;
    }
    ""
}

/// Appends constants of type u32.
pub(super) fn constants<'n>(source: &mut String, all: impl IntoIterator<Item = (&'n str, usize)>) {
    for (name, value) in all {
        let _ = writeln!(source, "const {name}: u32 = {value}u;");
    }
}

/// Numbers of eight bits.
pub(super) const E4M3: &str = include_str!("wgsl/e4m3.wgsl");

/// The beginning of most kernels.
pub(super) const ENTRY: &str = "
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
";

const SCALES: &str = include_str!("wgsl/scales.wgsl");
const GRIDS: &str = include_str!("wgsl/grids.wgsl");
const PLAIN: &str = include_str!("wgsl/plain.wgsl");
const BLOCK_SCALES: &str = include_str!("wgsl/block_scales.wgsl");

/// What quants stand for that are numbers of a table.
const TABLE: &str = include_str!("wgsl/table.wgsl");

/// Dot products of packed integers: weights.
const INTEGERS: &str = include_str!("wgsl/integers.wgsl");

/// The integers of an octet from one plane, as an expression.
fn plane_bytes(plane: &Plane, name: &str) -> String {
    match (plane.width(), plane.bits) {
        (1, 1) => format!("one_bit_plane(block, octet, {name}_AT)"),
        (1, 2) => format!("two_bit_plane(block, octet, {name}_AT)"),
        (1, _) => format!("words_at(block + {name}_AT + octet * 8u)"),
        _ => format!("wide_plane(block, octet, {name}_AT, {name}_BITS, {name}_SPAN, {name}_WIDTH)"),
    }
}

/// The integers of an octet, a byte each, as an expression.
fn octet_bytes(low: &Plane, high: Option<&Plane>) -> String {
    let bytes = plane_bytes(low, "LOW");
    match high {
        None => bytes,
        Some(high) => format!("{bytes} | ({} << vec2<u32>(LOW_BITS))", plane_bytes(high, "HIGH")),
    }
}

fn decode_planes(source: &mut String, low: &Plane, high: Option<&Plane>, meaning: Meaning, adds: bool) {
    let quants = octet_bytes(low, high);
    let values = |word: &str| match meaning {
        Meaning::Unsigned { zero: 0 } => format!("vec4<f32>(bytes_of({word}))"),
        Meaning::Unsigned { .. } => format!("(vec4<f32>(bytes_of({word})) - f32(ZERO))"),
        Meaning::Signed => format!("vec4<f32>(signed_bytes_of({word}))"),
        Meaning::Table(_) => format!("table_values({word})"),
    };
    let apply = if adds { " * scale.x + scale.y" } else { " * scale" };
    let (a, b) = (values("quants.x"), values("quants.y"));
    let _ = write!(
        source,
        "
fn decode_block(block: u32, octet: u32) -> Octet {{
  let quants = {quants};
  let scale = octet_scale(block, octet);
  return Octet({a}{apply}, {b}{apply});
}}
"
    );
}

/// The function `block_quants(block, octet)`: the integers of an octet as i8, for dot products of packed bytes. Scales apply to them as to `decode_block`.
pub(super) fn integer_decoder(source: &mut String, layout: &Layout) {
    let Quants::Planes { low, high, meaning } = &layout.quants else { return };
    let quants = octet_bytes(low, high.as_ref());
    let signed = match meaning {
        Meaning::Unsigned { zero: 0 } | Meaning::Signed => "quants",
        Meaning::Unsigned { .. } => "vec2<u32>(less_zero(quants.x), less_zero(quants.y))",
        Meaning::Table(_) => "vec2<u32>(table_bytes(quants.x), table_bytes(quants.y))",
    };
    source.push_str(match meaning {
        Meaning::Unsigned { zero: 0 } | Meaning::Signed => "",
        Meaning::Unsigned { .. } => section(INTEGERS, "zero"),
        // there already
        Meaning::Table(values) if *values == DOUBLED => "",
        Meaning::Table(_) => section(TABLE, "bytes"),
    });
    let _ = write!(
        source,
        "
fn block_quants(block: u32, octet: u32) -> vec2<u32> {{
  let quants = {quants};
  return {signed};
}}
"
    );
    source.push_str(section(INTEGERS, "octets"));
    source.push_str(section(INTEGERS, if layout.adds() { "adds" } else { "scales" }));
}

/// Constants of a layout and the function `decode_block(block, octet)`, which dequantizes an octet of the block at a byte offset into `weight`.
pub(super) fn decoder(source: &mut String, layout: &Layout, storage: Storage, f16_values: F16Values) {
    constants(source, layout.constants(storage));
    source.push('\n');
    source.push_str(f16_values.wgsl());
    source.push('\n');
    source.push_str(include_str!("wgsl/bytes.wgsl"));
    let repacked = storage == Storage::Planes && layout.odd_scale().is_some();
    source.push_str(match layout.word_blocks() || repacked {
        true => include_str!("wgsl/words_aligned.wgsl"),
        false => include_str!("wgsl/words_unaligned.wgsl"),
    });
    if layout.fields.iter().any(|(name, _)| *name == "D_AT") {
        source.push('\n');
        source.push_str(section(BLOCK_SCALES, if repacked { "in_a_plane" } else { "in_blocks" }));
    }
    source.push('\n');
    source.push_str(section(
        SCALES,
        match layout.scales {
            Scales::None => "none",
            Scales::Half => "half",
            Scales::HalfMin => "half_min",
            Scales::Single => "single",
            Scales::E8m0 => "e8m0",
            Scales::Ue4m3 => "ue4m3",
            Scales::NibbleMins => "nibble_mins",
            Scales::SixBitMins => "six_bit_mins",
            Scales::SixBit => "six_bit",
            Scales::Bytes => "bytes",
            Scales::SplitSixBit => "split_six_bit",
        },
    ));
    match &layout.quants {
        Quants::Plain(float) => {
            if *float == Float::F8E4M3 {
                source.push_str(E4M3);
            }
            source.push_str(section(
                PLAIN,
                match float {
                    Float::F32 => "f32",
                    Float::F16 => "f16",
                    Float::BF16 => "bf16",
                    Float::F8E4M3 => "f8_e4m3",
                },
            ));
        }
        Quants::Planes { low, high, meaning } => {
            source.push_str(include_str!("wgsl/planes.wgsl"));
            if let Meaning::Table(values) = meaning {
                // numbers that can be computed, four at a time
                let sections = if *values == DOUBLED { ["e2m1", "e2m1_values"] } else { ["word", "values"] };
                sections.into_iter().for_each(|name| source.push_str(section(TABLE, name)));
            }
            decode_planes(source, low, high.as_ref(), *meaning, layout.adds());
        }
        Quants::Ternary => source.push_str(include_str!("wgsl/ternary.wgsl")),
        Quants::Grid(grid) => {
            source.push_str(section(GRIDS, "signs"));
            source.push_str(section(
                GRIDS,
                match grid {
                    Grid::Iq1S => "iq1_s",
                    Grid::Iq1M => "iq1_m",
                    Grid::Iq2Xxs => "iq2_xxs",
                    Grid::Iq2Xs => "iq2_xs",
                    Grid::Iq2S => "iq2_s",
                    Grid::Iq3Xxs => "iq3_xxs",
                    Grid::Iq3S => "iq3_s",
                },
            ));
        }
    }
}
