//! GPTQ for block formats.

use super::factor::HessianFactor;
use super::group::{GroupFactor, GroupTargets, RoundedGroup, UnsignedLevels, losses, round_group};
use super::rows::{BATCH_ROWS, GptqRows, group_factor};
use crate::blocks::put_nibbles;
use crate::error::QuantError;
use crate::k_scales::pack_scales_mins;
use crate::search::levels::{E2m1Levels, IntegerLevels, QuantLevels};
use crate::search::{Candidates, LANES, affine, clamp, largest, lowest, round, safe_inverse};
use crate::{e2m1, mxfp4, nvfp4};
use half::f16;
use latent_types::TensorType;

/// Calls a macro with the list of formats that rows are rounded to: each type, its [`GptqFormat`],
/// and the columns that share a scale.
#[macro_export]
macro_rules! gptq_formats {
    ($then:ident) => {
        $then! { Q4_0 q4_0 32, Q4_K q4_k 32, MXFP4 mxfp4 32, NVFP4 nvfp4 16 }
    };
}

macro_rules! types {
    ($($format_type:ident $format:ident $group:literal),*) => { &[$((TensorType::$format_type, $group)),*] };
}

/// Types with a [`GptqFormat`], and the columns that share a scale.
const TYPES: &[(TensorType, usize)] = gptq_formats!(types);

/// The types that rows can be rounded to.
pub fn gptq_types() -> impl Iterator<Item = TensorType> {
    TYPES.iter().map(|(ty, _)| *ty)
}

/// Whether rows can be rounded to a type.
pub fn has_gptq(ty: TensorType) -> bool {
    group_len(ty).is_some()
}

/// Columns that share a scale in a type; `None` if it has no [`GptqFormat`].
pub fn group_len(ty: TensorType) -> Option<usize> {
    TYPES.iter().find(|(of, _)| *of == ty).map(|(_, group)| *group)
}

/// An unchecked function that rounds rows. The factor must have the group length of the format, and
/// rows the factor's columns, which must be whole blocks.
pub type GptqFormat = fn(&HessianFactor, &[f32], &mut GptqRows, &mut [u8]);

/// Checks that rows, output bytes and factor match for a type.
///
/// # Errors
/// When the type has no GPTQ, or a length disagrees with the columns or the group of the factor.
pub fn check_rows(
    ty: TensorType,
    factor: &HessianFactor,
    rows: &[f32],
    out: &[u8],
) -> Result<(), QuantError> {
    let columns = factor.columns();
    if group_len(ty) != Some(factor.group()) {
        return Err(QuantError::NotEncodable(ty));
    }
    let bytes = ty.row_bytes(columns).and_then(|bytes| bytes.checked_mul(rows.len() / columns));
    if !rows.len().is_multiple_of(columns) || bytes != Some(out.len()) {
        return Err(QuantError::Length { ty, bytes: out.len(), numbers: rows.len() });
    }
    Ok(())
}

/// Rounds rows of a weight to a type by the factor of its Hessian, deterministically and
/// independently of one another. NaN and infinity as for [`crate::encode`], but they affect their
/// whole row.
///
/// # Errors
/// As for [`check_rows`].
pub fn quantize_rows(
    ty: TensorType,
    factor: &HessianFactor,
    rows: &[f32],
    out: &mut [u8],
) -> Result<(), QuantError> {
    check_rows(ty, factor, rows, out)?;
    macro_rules! of_type {
        ($($format_type:ident $format:ident $group:literal),*) => {
            match ty {
                $(TensorType::$format_type => $format,)*
                _ => return Err(QuantError::NotEncodable(ty)),
            }
        };
    }
    let run: GptqFormat = gptq_formats!(of_type);
    run(factor, rows, &mut GptqRows::default(), out);
    Ok(())
}

/// The values of a group by column instead of by position.
#[inline(always)]
pub(crate) fn by_column<const G: usize>(factor: &HessianFactor, first: usize, values: &[f32; G]) -> [f32; G] {
    // A group keeps its columns: `act_order` permutes only within groups.
    let mut out = [0.0; G];
    for i in 0..G {
        out[factor.order()[first + i] as usize % G] = values[i];
    }
    out
}

/// Searches scales around those that map the extreme target to an end of the levels, then scales
/// around the best of them. Each is rounded by `store` first.
#[inline(always)]
pub(crate) fn search_scale<L: QuantLevels, const G: usize>(
    factor: &GroupFactor<G>,
    row: &GroupTargets<G>,
    store: impl Fn(f32) -> f32,
) -> f32 {
    let mut extreme = 0.0f32;
    for v in row.targets {
        extreme = if v.abs() > extreme.abs() { v } else { extreme };
    }
    let (mut best, mut scale) = (f32::INFINITY, 0.0);
    for attempt in 0..4 {
        let mut scales = [0.0; LANES];
        for l in 0..LANES {
            let near = (l as f32 - 7.0) * if attempt == 2 { 0.006 } else { 0.0015 };
            scales[l] = store(match attempt {
                0 | 1 => extreme / L::end(attempt * LANES + l),
                // Recovers the exact scale of weights that were dequantized from this format.
                3 if l > 13 => extreme / L::ENDS[l - 14],
                _ => scale * (1.0 + near),
            });
        }
        let losses = losses::<L, G>(factor, row, &scales, &[0.0; LANES]);
        let lane = lowest(&losses);
        if losses[lane] < best {
            (best, scale) = (losses[lane], scales[lane]);
        }
    }
    scale
}

/// Calls `round` for each group of each row, in the order of positions, and adjusts the targets of
/// later groups.
#[inline(always)]
pub(crate) fn each_group<const G: usize>(
    factor: &HessianFactor,
    rows: &[f32],
    memory: &mut GptqRows,
    mut round: impl FnMut(usize, usize, &GroupFactor<G>, &GptqRows) -> RoundedGroup<G>,
) {
    let columns = factor.columns();
    // Groups outside, rows inside: a group's part of the factor is copied once per batch of rows.
    for (batch, rows) in rows.chunks(BATCH_ROWS * columns).enumerate() {
        memory.start(factor, rows);
        for first in (0..columns).step_by(G) {
            let group = group_factor::<G>(factor, first);
            for row in 0..rows.len() / columns {
                let rounded = round(batch * BATCH_ROWS + row, first, &group, memory);
                memory.carry(factor, row, first, &rounded.errors);
            }
        }
    }
}

/// Rounds rows to Q4_0.
#[inline(always)]
pub fn q4_0(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
    let columns = factor.columns();
    each_group::<32>(factor, rows, memory, |row, first, group, memory| {
        let targets = memory.group::<32>(columns, row % BATCH_ROWS, first);
        let store = |scale: f32| f16::from_f32(scale).to_f32();
        let scale = search_scale::<IntegerLevels<8>, 32>(group, &targets, store);
        let rounded = round_group::<IntegerLevels<8>, 32>(group, &targets, (scale, 0.0));
        let block = &mut out[(row * columns + first) / 32 * 18..][..18];
        block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        let levels = by_column(factor, first, &rounded.levels);
        put_nibbles(&mut block[2..], &levels.map(|level| (level + 8.0) as u8));
        rounded
    });
}

/// Rounds rows to MXFP4.
#[inline(always)]
pub fn mxfp4(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
    let columns = factor.columns();
    each_group::<32>(factor, rows, memory, |row, first, group, memory| {
        let targets = memory.group::<32>(columns, row % BATCH_ROWS, first);
        // The candidates of the search in `mxfp4`; the other lanes repeat the middle.
        let middle = mxfp4::scale_code(largest(&targets.targets));
        let (mut codes, mut scales) = ([middle; LANES], [0.0; LANES]);
        for l in 0..LANES {
            codes[l] = match l {
                1 => middle.saturating_sub(1),
                // The code 255 of E8M0 is NaN.
                2 => (middle + 1).min(254),
                3 => (middle.saturating_add(2)).min(254),
                _ => middle,
            };
            scales[l] = mxfp4::half_scale(codes[l]);
        }
        let lane = lowest(&losses::<E2m1Levels, 32>(group, &targets, &scales, &[0.0; LANES]));
        let rounded = round_group::<E2m1Levels, 32>(group, &targets, (scales[lane], 0.0));
        let block = &mut out[(row * columns + first) / 32 * 17..][..17];
        block[0] = codes[lane];
        put_nibbles(&mut block[1..], &by_column(factor, first, &rounded.levels).map(e2m1::code_of));
        rounded
    });
}

/// Rounds rows to NVFP4.
#[inline(always)]
pub fn nvfp4(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
    let columns = factor.columns();
    each_group::<16>(factor, rows, memory, |row, first, group, memory| {
        let targets = memory.group::<16>(columns, row % BATCH_ROWS, first);
        let (codes, mut scales) = (nvfp4::candidates(&targets.targets), [0.0; LANES]);
        for l in 0..LANES {
            scales[l] = nvfp4::half_scale(codes[l]);
        }
        let lane = lowest(&losses::<E2m1Levels, 16>(group, &targets, &scales, &[0.0; LANES]));
        let rounded = round_group::<E2m1Levels, 16>(group, &targets, (scales[lane], 0.0));
        let (block, g) = ((row * columns + first) / 64 * 36, first % 64 / 16);
        out[block + g] = codes[lane];
        let levels = by_column(factor, first, &rounded.levels).map(e2m1::code_of);
        for i in 0..8 {
            // A byte has elements i and i + 8 of its sub-block of sixteen.
            out[block + 4 + g * 8 + i] = levels[i] | (levels[i + 8] << 4);
        }
        rounded
    });
}

/// Scales of a row's current super-block.
#[derive(Clone, Copy, Default)]
struct SuperBlockScales {
    d: f32,
    dmin: f32,
    scales: [u8; 8],
    mins: [u8; 8],
}

/// Rounds rows to Q4_K.
// The scales of a super-block are chosen for its targets at its start, before errors inside it are
// known. The scale of a sub-block is chosen again when it begins.
#[inline(always)]
pub fn q4_k(factor: &HessianFactor, rows: &[f32], memory: &mut GptqRows, out: &mut [u8]) {
    let columns = factor.columns();
    let mut blocks = [SuperBlockScales::default(); BATCH_ROWS];
    each_group::<32>(factor, rows, memory, |row, first, group, memory| {
        let in_batch = row % BATCH_ROWS;
        let block = &mut blocks[in_batch];
        let out = &mut out[(row * columns + first) / 256 * 144..][..144];
        let g = first % 256 / 32;
        if g == 0 {
            let at = in_batch * columns + first;
            let mut costs = [0.0; 256];
            costs.copy_from_slice(&factor.costs()[first..first + 256]);
            // Levels have four bits, scales and mins six.
            let found = affine::super_block_by::<8, 32>(&memory.targets[at..at + 256], costs, 15.0, 63.0);
            *block = SuperBlockScales {
                d: found.d.to_f32(),
                dmin: found.dmin.to_f32(),
                scales: found.scales,
                mins: found.mins,
            };
            out[..2].copy_from_slice(&found.d.to_le_bytes());
            out[2..4].copy_from_slice(&found.dmin.to_le_bytes());
        }
        let targets = memory.group::<32>(columns, in_batch, first);
        let (scale, min) = search_pair(group, &targets, block, g);
        (block.scales[g], block.mins[g]) = (scale as u8, min as u8);
        let pair = (block.d * scale, -(block.dmin * min));
        let rounded = round_group::<UnsignedLevels, 32>(group, &targets, pair);
        let levels = by_column(factor, first, &rounded.levels);
        for (byte, level) in out[16 + g / 2 * 32..][..32].iter_mut().zip(levels) {
            // The even sub-block comes first, and overwrites the high nibbles of the odd one too.
            *byte = if g.is_multiple_of(2) { level as u8 } else { *byte | ((level as u8) << 4) };
        }
        // Packed fields mix the scales of two sub-blocks, so they are written once all are chosen.
        if g == 7 {
            out[4..16].copy_from_slice(&pack_scales_mins(&block.scales, &block.mins));
        }
        rounded
    });
}

/// The stored scale and min of a sub-block. Starts with the pairs of the super-block's search and
/// of a fit to the current targets, and descends to the best neighbor.
#[inline(always)]
fn search_pair(
    group: &GroupFactor<32>,
    row: &GroupTargets<32>,
    block: &SuperBlockScales,
    g: usize,
) -> (f32, f32) {
    // Six bits.
    const TOP: f32 = 63.0;
    let (fit, offset) = affine::fit(&row.targets, &group.costs, 15.0, true);
    let stored = |v: f32, d: f32| round(clamp(v * safe_inverse(d), 0.0, TOP));
    let starts = [
        (f32::from(block.scales[g]), f32::from(block.mins[g])),
        (stored(fit, block.d), stored(-offset, block.dmin)),
    ];
    let (mut best, mut pair) = (f32::INFINITY, starts[0]);
    for attempt in 0..4 {
        let (scale, min) = if attempt < 2 { starts[attempt] } else { pair };
        let (mut scales, mut mins): (Candidates, Candidates) = ([0.0; LANES], [0.0; LANES]);
        let (mut values, mut offsets): (Candidates, Candidates) = ([0.0; LANES], [0.0; LANES]);
        for l in 0..LANES {
            // Lane 0 is the pair itself. Lanes 1 to 15 are three scales by five mins.
            let (up, right) = if l == 0 { (1, 2) } else { ((l - 1) / 5, (l - 1) % 5) };
            scales[l] = clamp(scale + up as f32 - 1.0, 0.0, TOP);
            mins[l] = clamp(min + right as f32 - 2.0, 0.0, TOP);
            (values[l], offsets[l]) = (block.d * scales[l], -(block.dmin * mins[l]));
        }
        let losses = losses::<UnsignedLevels, 32>(group, row, &values, &offsets);
        let lane = lowest(&losses);
        if losses[lane] < best {
            (best, pair) = (losses[lane], (scales[lane], mins[lane]));
        }
    }
    pair
}
