//! Composition of WGSL texts: constants from the tables, followed by the texts that use them.

use super::items::InputAccess;
use super::layout::{
    BitPlane, BlockLayout, BlockQuants, BlockStorage, GridCodebook, OctetScales, PlainFloat, QuantEncoding,
};
use crate::f16_values::F16Values;
use latent_quant::e2m1::DOUBLED;
use std::fmt::Write;

/// The section of a text that begins after the line `//= name`. It ends before the next such line.
pub(super) fn section(text: &'static str, name: &str) -> &'static str {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("//= ") {
        let Some((title, body)) = after.split_once('\n') else { break };
        if title == name {
            return body.split_once("//= ").map_or(body, |(body, _)| body);
        }
        rest = after;
    }
    // A misspelt name gives a shader that calls undefined functions. The tests translate every
    // shader, and fail for it.
    ""
}

/// Appends constants of type u32.
pub(super) fn constants<'n>(source: &mut String, all: impl IntoIterator<Item = (&'n str, usize)>) {
    for (name, value) in all {
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(source, "const {name}: u32 = {value}u;");
    }
}

/// Conversion of F8_E4M3.
pub(super) const E4M3: &str = include_str!("wgsl/e4m3.wgsl");

/// The entry point of most kernels.
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

/// Look-up of quants that index a table.
const TABLE: &str = include_str!("wgsl/table.wgsl");

/// Dot products of packed integers.
const INTEGERS: &str = include_str!("wgsl/integers.wgsl");

/// Quantization of f32 to int8.
pub(super) const INT8_BLOCK: &str = include_str!("wgsl/int8_block.wgsl");

/// An expression for the integers of an octet in one plane.
fn plane_bytes(plane: &BitPlane, name: &str) -> String {
    match (plane.width(), plane.bits) {
        (1, 1) => format!("one_bit_plane(block, octet, {name}_AT)"),
        (1, 2) => format!("two_bit_plane(block, octet, {name}_AT)"),
        // Quants of eight bits are bytes in the order of the elements already.
        (1, _) => format!("words_at(block + {name}_AT + octet * 8u)"),
        // Wider spans have at least eight bytes, so that an octet is in eight consecutive bytes,
        // all at the same bit.
        _ => format!("wide_plane(block, octet, {name}_AT, {name}_BITS, {name}_SPAN, {name}_WIDTH)"),
    }
}

/// An expression for the integers of an octet, one byte each.
fn octet_bytes(low: &BitPlane, high: Option<&BitPlane>) -> String {
    let bytes = plane_bytes(low, "LOW");
    match high {
        None => bytes,
        // Both planes are masked, so that their bits do not overlap.
        Some(high) => format!("{bytes} | ({} << vec2<u32>(LOW_BITS))", plane_bytes(high, "HIGH")),
    }
}

fn decode_planes(
    source: &mut String,
    low: &BitPlane,
    high: Option<&BitPlane>,
    meaning: QuantEncoding,
    adds: bool,
) {
    let quants = octet_bytes(low, high);
    let values = |word: &str| match meaning {
        QuantEncoding::Unsigned { zero: 0 } => format!("vec4<f32>(bytes_of({word}))"),
        QuantEncoding::Unsigned { .. } => format!("(vec4<f32>(bytes_of({word})) - f32(ZERO))"),
        QuantEncoding::Signed => format!("vec4<f32>(signed_bytes_of({word}))"),
        QuantEncoding::Table(_) => format!("table_values({word})"),
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

/// Appends the function `block_quants(block, octet)`, which returns the integers of an octet as i8
/// for dot products of packed bytes. Their scales are those of `decode_block`.
pub(super) fn integer_decoder(source: &mut String, layout: &BlockLayout, inputs: InputAccess) {
    let BlockQuants::Planes { low, high, meaning } = &layout.quants else { return };
    let quants = octet_bytes(low, high.as_ref());
    let signed = match meaning {
        // Integers without a zero point have fewer than eight bits, or are signed: their bytes are
        // i8 already.
        QuantEncoding::Unsigned { zero: 0 } | QuantEncoding::Signed => "quants",
        QuantEncoding::Unsigned { .. } => "vec2<u32>(less_zero(quants.x), less_zero(quants.y))",
        QuantEncoding::Table(_) => "vec2<u32>(table_bytes(quants.x), table_bytes(quants.y))",
    };
    source.push_str(match meaning {
        QuantEncoding::Unsigned { zero: 0 } | QuantEncoding::Signed => "",
        QuantEncoding::Unsigned { .. } => section(INTEGERS, "zero"),
        // `decoder` has already appended it.
        QuantEncoding::Table(values) if *values == DOUBLED => "",
        QuantEncoding::Table(_) => section(TABLE, "bytes"),
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
    if inputs == InputAccess::Quantized {
        source.push_str(INT8_BLOCK);
        source.push_str(section(INTEGERS, "quantized"));
    } else {
        source.push_str(section(INTEGERS, "blocks"));
    }
    source.push_str(section(INTEGERS, if layout.adds() { "adds" } else { "scales" }));
}

/// Appends the constants of a layout and the function `decode_block(block, octet)`, which
/// dequantizes an octet of the block at a byte offset into `weight`.
pub(super) fn decoder(
    source: &mut String,
    layout: &BlockLayout,
    storage: BlockStorage,
    f16_values: F16Values,
) {
    constants(source, layout.constants(storage));
    source.push('\n');
    source.push_str(f16_values.wgsl());
    source.push('\n');
    source.push_str(include_str!("wgsl/bytes.wgsl"));
    let repacked = storage == BlockStorage::Planes && layout.odd_scale().is_some();
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
            OctetScales::None => "none",
            OctetScales::Half => "half",
            OctetScales::HalfMin => "half_min",
            OctetScales::Single => "single",
            OctetScales::E8m0 => "e8m0",
            OctetScales::Ue4m3 => "ue4m3",
            OctetScales::NibbleMins => "nibble_mins",
            OctetScales::SixBitMins => "six_bit_mins",
            OctetScales::SixBit => "six_bit",
            OctetScales::Bytes => "bytes",
            OctetScales::SplitSixBit => "split_six_bit",
        },
    ));
    match &layout.quants {
        BlockQuants::Plain(float) => {
            if *float == PlainFloat::F8E4M3 {
                source.push_str(E4M3);
            }
            source.push_str(section(
                PLAIN,
                match float {
                    PlainFloat::F32 => "f32",
                    PlainFloat::F16 => "f16",
                    PlainFloat::BF16 => "bf16",
                    PlainFloat::F8E4M3 => "f8_e4m3",
                },
            ));
        }
        BlockQuants::Planes { low, high, meaning } => {
            source.push_str(include_str!("wgsl/planes.wgsl"));
            if let QuantEncoding::Table(values) = meaning {
                // E2M1 values can be computed, four at a time.
                let sections = if *values == DOUBLED { ["e2m1", "e2m1_values"] } else { ["word", "values"] };
                sections.into_iter().for_each(|name| source.push_str(section(TABLE, name)));
            }
            decode_planes(source, low, high.as_ref(), *meaning, layout.adds());
        }
        BlockQuants::Ternary => source.push_str(include_str!("wgsl/ternary.wgsl")),
        BlockQuants::Grid(grid) => {
            source.push_str(section(GRIDS, "signs"));
            source.push_str(section(
                GRIDS,
                match grid {
                    GridCodebook::Iq1S => "iq1_s",
                    GridCodebook::Iq1M => "iq1_m",
                    GridCodebook::Iq2Xxs => "iq2_xxs",
                    GridCodebook::Iq2Xs => "iq2_xs",
                    GridCodebook::Iq2S => "iq2_s",
                    GridCodebook::Iq3Xxs => "iq3_xxs",
                    GridCodebook::Iq3S => "iq3_s",
                },
            ));
        }
    }
}
