//! AMX tile instructions. Their intrinsics are unstable, so they are inline assembly. A whole
//! register tile of products is one `asm!`, since the compiler does not preserve tile registers
//! between two.
#![allow(unsafe_code, reason = "inline assembly")]

use super::{Bf16Dot, CachedRows, KV_BLOCK, LANES, LoadedKv, TILE_ACC_LEN, TILE_LEN, TILE_ROWS, store_pairs};
use crate::bf16::layout::{F32Matrix, right_panel};
use crate::bf16_layout::{K_STEP, PANEL, steps};
use crate::kv_cache::KvPrefetch;
use crate::simd::avx512::Avx512;
use half::bf16;
use latent_types::{CacheType, Tier};
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::time::Instant;

/// Outputs of a register tile: two AMX tiles.
pub(crate) const NR: usize = 32;

/// Operand of `ldtilecfg` (Intel SDM): the palette, the bytes per row of each tile from byte 16 on,
/// the rows of each tile from byte 48 on. Eight tiles of sixteen rows of 64 bytes.
#[repr(C, align(64))]
struct AmxTileConfig([u8; 64]);

static CONFIG: AmxTileConfig = {
    let mut config = [0; 64];
    // Palette 1: eight tiles of at most 1 KB.
    config[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = TILE_ROWS as u8;
        tile += 1;
    }
    AmxTileConfig(config)
};

/// The configured tiles of this thread. Dropping it releases them, so that the OS need not save 8
/// KB of tile state at each later context switch.
// The raw pointer makes it neither `Send` nor `Sync`: the configuration belongs to a thread.
pub(crate) struct AmxTiles(PhantomData<*mut ()>);

impl AmxTiles {
    /// to = from + left · right, for `16 · T` rows and 32 outputs; `T` is 1 or 2. `from` none: to =
    /// left · right.
    ///
    /// # Safety
    /// * each of `left` is the address of sixteen rows of `steps` · 64 bytes, `left_stride` bytes
    ///   apart;
    /// * `right` is the address of `steps` · 2 tiles: per k-step the weights of outputs 0 to 15,
    ///   then of outputs 16 to 31;
    /// * `from` and `to` are addresses of `16 · T` rows of 32 elements with the given strides in
    ///   bytes. No other thread accesses these rows during the call.
    pub unsafe fn multiply<const T: usize>(
        &mut self,
        (left, left_stride): ([*const u8; T], usize),
        right: *const u8,
        steps: usize,
        from: Option<(*const f32, usize)>,
        (to, to_stride): (*mut f32, usize),
    ) {
        let (from, from_stride) = from.unwrap_or((std::ptr::null(), 0));
        // The loop below decrements before it tests, so that 0 steps would be 2^64.
        if steps == 0 {
            for row in 0..T * TILE_ROWS {
                let to = to.wrapping_byte_add(row * to_stride);
                // SAFETY: rows of 32 elements by this function's contract. `from` may be `to`.
                unsafe {
                    if from.is_null() {
                        to.write_bytes(0, NR);
                    } else {
                        from.wrapping_byte_add(row * from_stride).copy_to(to, NR);
                    }
                }
            }
            return;
        }
        // Tiles 0 to 3 are accumulators, 4 and 5 rows, 6 and 7 weights: each loaded tile is used in
        // two products. Loads are placed between products so that they overlap.
        // SAFETY: addresses by this function's contract; the tiles stay configured while `self`
        // lives.
        unsafe {
            if T == 2 {
                asm!(
                    "test {from}, {from}",
                    "jnz 2f",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "jmp 3f",
                    "2:",
                    "tileloadd tmm0, [{from} + {from_stride}]",
                    "tileloadd tmm1, [{from} + {from_stride} + 64]",
                    "tileloadd tmm2, [{from_low} + {from_stride}]",
                    "tileloadd tmm3, [{from_low} + {from_stride} + 64]",
                    "3:",
                    "tileloadd tmm6, [{right} + {line}]",
                    "tileloadd tmm4, [{high} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{right} + {line} + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{low} + {left_stride}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {high}, 64",
                    "add {low}, 64",
                    "add {right}, 2048",
                    "dec {steps}",
                    "jnz 3b",
                    "tilestored [{to} + {to_stride}], tmm0",
                    "tilestored [{to} + {to_stride} + 64], tmm1",
                    "tilestored [{to_low} + {to_stride}], tmm2",
                    "tilestored [{to_low} + {to_stride} + 64], tmm3",
                    from = in(reg) from,
                    from_low = in(reg) from.wrapping_byte_add(TILE_ROWS * from_stride),
                    from_stride = in(reg) from_stride,
                    right = inout(reg) right => _,
                    line = in(reg) 64usize,
                    high = inout(reg) left[0] => _,
                    low = inout(reg) left[T - 1] => _,
                    left_stride = in(reg) left_stride,
                    steps = inout(reg) steps => _,
                    to = in(reg) to,
                    to_low = in(reg) to.wrapping_byte_add(TILE_ROWS * to_stride),
                    to_stride = in(reg) to_stride,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            } else {
                asm!(
                    "test {from}, {from}",
                    "jnz 2f",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "jmp 3f",
                    "2:",
                    "tileloadd tmm0, [{from} + {from_stride}]",
                    "tileloadd tmm1, [{from} + {from_stride} + 64]",
                    "3:",
                    "tileloadd tmm6, [{right} + {line}]",
                    "tileloadd tmm4, [{left} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{right} + {line} + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {left}, 64",
                    "add {right}, 2048",
                    "dec {steps}",
                    "jnz 3b",
                    "tilestored [{to} + {to_stride}], tmm0",
                    "tilestored [{to} + {to_stride} + 64], tmm1",
                    from = in(reg) from,
                    from_stride = in(reg) from_stride,
                    right = inout(reg) right => _,
                    line = in(reg) 64usize,
                    left = inout(reg) left[0] => _,
                    left_stride = in(reg) left_stride,
                    steps = inout(reg) steps => _,
                    to = in(reg) to,
                    to_stride = in(reg) to_stride,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    }
}

impl Bf16Dot for AmxTiles {
    /// Configures the tiles.
    fn new() -> AmxTiles {
        assert!(
            crate::features::features().tier() == Tier::Amx,
            "a kernel for tiles on a machine without them"
        );
        // SAFETY: the CPU has tiles, as just asserted, and palette 1 with these shapes is valid on
        // all of them. Not `nomem`: it reads the static.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags));
        }
        AmxTiles(PhantomData)
    }

    fn reads(cache: CacheType) -> bool {
        cache == CacheType::Bf16
    }

    unsafe fn panels(
        &mut self,
        [first, second]: [(*const bf16, usize); 2],
        right: *const bf16,
        add: bool,
        to: *mut f32,
    ) {
        // As in `multiply`, the loop runs at least once.
        assert!(first.1 > 0, "steps of a panel");
        // At the end of a part, `xchg` fetches the second part's steps and leaves 0 in their place,
        // which ends the loop the next time.
        // SAFETY: addresses by this function's contract; the tiles stay configured while `self`
        // lives, and are used as in `multiply`.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jnz 2f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 3f",
                "2:",
                "tileloadd tmm0, [{to} + 2*{line}]",
                "tileloadd tmm1, [{to} + 2*{line} + 64]",
                "tileloadd tmm2, [{to} + 2*{line} + 2048]",
                "tileloadd tmm3, [{to} + 2*{line} + 2112]",
                "3:",
                "tileloadd tmm6, [{right} + {line}]",
                "tileloadd tmm4, [{left} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{left} + {line} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 2048",
                "add {right}, 2048",
                "dec {steps}",
                "jnz 3b",
                "mov {left}, {second}",
                "xchg {steps}, {second_steps}",
                "test {steps}, {steps}",
                "jnz 3b",
                "tilestored [{to} + 2*{line}], tmm0",
                "tilestored [{to} + 2*{line} + 64], tmm1",
                "tilestored [{to} + 2*{line} + 2048], tmm2",
                "tilestored [{to} + 2*{line} + 2112], tmm3",
                add = in(reg) u32::from(add),
                left = inout(reg) first.0 => _,
                steps = inout(reg) first.1 => _,
                second = in(reg) second.0,
                second_steps = inout(reg) second.1 => _,
                right = inout(reg) right => _,
                line = in(reg) 64usize,
                to = in(reg) to,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    unsafe fn pack_queries(&mut self, queries: F32Matrix, factor: f32, to: *mut bf16) {
        for head in (0..queries.rows).step_by(PANEL) {
            let rows = F32Matrix {
                start: queries.start.wrapping_add(head * queries.stride),
                rows: (queries.rows - head).min(PANEL),
                ..queries
            };
            // SAFETY: rows and room by this function's contract; every CPU with AMX has
            // AVX512-BF16.
            unsafe {
                right_panel(rows, &[factor; PANEL], to.add(head * queries.cols.next_multiple_of(K_STEP)));
            }
        }
    }

    unsafe fn qk(
        &mut self,
        block: &CachedRows,
        loaded: LoadedKv,
        (right, heads): (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    ) {
        let steps = steps(block.stored.width());
        assert!(steps > 0, "steps of a panel");
        // Half of the prefetches here and half in `pv`, before the tile loops, which are assembly
        // without prefetches.
        // SAFETY: rows and room by this function's contract; every CPU with AMX has AVX-512.
        let (left, stride) = unsafe {
            ahead.prefetch::<Avx512>(ahead.lines / 2);
            interleave(block, loaded);
            left(block, steps, loaded.rows)
        };
        for (lanes, head) in (0..heads).step_by(LANES).enumerate() {
            // A panel has two tiles per k-step.
            let panel = (head / PANEL * steps * 2 + head % PANEL / LANES) * TILE_LEN;
            // SAFETY: four times sixteen rows at `left`, packed queries of sixteen heads, and their
            // 64 × 16 scores.
            unsafe {
                let to = to.add(lanes * KV_BLOCK * LANES);
                self.qk_sixteen((left, stride), right.add(panel), steps, to);
            }
        }
    }

    unsafe fn pv(
        &mut self,
        (left, heads, steps): (*const bf16, usize, usize),
        (right, groups): (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    ) {
        assert!(steps > 0 && groups > 0, "steps and groups");
        // SAFETY: every CPU with AMX has AVX-512.
        unsafe { ahead.prefetch::<Avx512>(usize::MAX) };
        for lanes in 0..heads.div_ceil(LANES) {
            // SAFETY: tiles of weights and sums of sixteen heads by this function's contract.
            unsafe {
                let left = left.add(lanes * steps * TILE_LEN);
                self.pv_sixteen((left, steps), right, groups, to.add(lanes * groups * 4 * TILE_ACC_LEN));
            }
        }
    }
}

impl AmxTiles {
    /// [`qk`](Bf16Dot::qk) of sixteen heads.
    ///
    /// # Safety
    /// Each of `left` is the address of sixteen rows of `steps` · 64 bytes, `stride` bytes apart;
    /// `right` of every second of `steps` · 2 tiles; `to` of 64 × 16 elements.
    unsafe fn qk_sixteen(
        &mut self,
        (left, stride): ([*const bf16; KV_BLOCK / TILE_ROWS], usize),
        right: *const bf16,
        steps: usize,
        to: *mut f32,
    ) {
        // SAFETY: addresses by this function's contract; the tiles stay configured while `self`
        // lives.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm7, [{right} + {line}]",
                "tileloadd tmm4, [{a} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tileloadd tmm5, [{b} + {stride}]",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "tileloadd tmm6, [{c} + {stride}]",
                "tdpbf16ps tmm2, tmm6, tmm7",
                "tileloadd tmm4, [{d} + {stride}]",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "add {a}, 64",
                "add {b}, 64",
                "add {c}, 64",
                "add {d}, 64",
                "add {right}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{to} + {line}], tmm0",
                "tilestored [{to} + {line} + 1024], tmm1",
                "tilestored [{to} + {line} + 2048], tmm2",
                "tilestored [{to} + {line} + 3072], tmm3",
                a = inout(reg) left[0] => _,
                b = inout(reg) left[1] => _,
                c = inout(reg) left[2] => _,
                d = inout(reg) left[3] => _,
                stride = in(reg) stride,
                right = inout(reg) right => _,
                line = in(reg) 64usize,
                steps = inout(reg) steps => _,
                to = in(reg) to,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// [`pv`](Bf16Dot::pv) of sixteen heads.
    ///
    /// # Safety
    /// As there, of sixteen heads.
    unsafe fn pv_sixteen(
        &mut self,
        (left, steps): (*const bf16, usize),
        right: *const bf16,
        groups: usize,
        to: *mut f32,
    ) {
        // SAFETY: addresses by this function's contract; the tiles stay configured while `self`
        // lives.
        unsafe {
            asm!(
                "2:",
                "tileloadd tmm0, [{to} + {line}]",
                "tileloadd tmm1, [{to} + {line} + 1024]",
                "tileloadd tmm2, [{to} + {line} + 2048]",
                "tileloadd tmm3, [{to} + {line} + 3072]",
                "mov {at}, {left}",
                "mov {step}, {steps}",
                "3:",
                "tileloadd tmm4, [{at} + {line}]",
                "tileloadd tmm5, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{right} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 2048]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{right} + {line} + 3072]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {at}, 1024",
                "add {right}, 4096",
                "dec {step}",
                "jnz 3b",
                "tilestored [{to} + {line}], tmm0",
                "tilestored [{to} + {line} + 1024], tmm1",
                "tilestored [{to} + {line} + 2048], tmm2",
                "tilestored [{to} + {line} + 3072], tmm3",
                "add {to}, 4096",
                "dec {groups}",
                "jnz 2b",
                left = in(reg) left,
                at = out(reg) _,
                steps = in(reg) steps,
                step = out(reg) _,
                right = inout(reg) right => _,
                line = in(reg) 64usize,
                groups = inout(reg) groups => _,
                to = inout(reg) to => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Addresses of four times sixteen rows of whole k-steps, and their stride in bytes. Rows are read
/// in the cache if they are whole k-steps; a last tile with missing rows, or rows of another width,
/// are copied to `copied`, padded with zeros.
///
/// # Safety
/// The block's rows are bf16, and `copied` has room for a block of whole k-steps.
unsafe fn left(
    block: &CachedRows,
    steps: usize,
    copied: *mut bf16,
) -> ([*const bf16; KV_BLOCK / TILE_ROWS], usize) {
    let (width, line) = (block.stored.width(), steps * K_STEP);
    let whole = if line == width { block.count / TILE_ROWS } else { 0 };
    // SAFETY: rows below the padded count, for which `copied` has room; of missing rows nothing is
    // read.
    unsafe {
        for row in whole * TILE_ROWS..block.count.next_multiple_of(TILE_ROWS) {
            let out = copied.add(row * line);
            let present = if row < block.count { width } else { 0 };
            block.row(row).cast::<bf16>().copy_to_nonoverlapping(out, present);
            out.add(present).write_bytes(0, line - present);
        }
    }
    let tile = |tile: usize| {
        // Tiles beyond the last repeat it, and their results are discarded: one assembly loop for
        // four tiles.
        let tile = tile.min(block.count.div_ceil(TILE_ROWS) - 1);
        let from = if tile < whole { block.start.cast() } else { copied.cast_const() };
        from.wrapping_add(tile * TILE_ROWS * line)
    };
    (std::array::from_fn(tile), line * size_of::<bf16>())
}

crate::isa::isa_fn! { Avx512;
/// Stores the rows of a block in pairs.
///
/// # Safety
/// The block's rows are bf16, and `loaded` has room for the tiles; the CPU has AVX-512.
unsafe fn interleave(block: &CachedRows, loaded: LoadedKv) {
    for row in (0..block.count.next_multiple_of(K_STEP)).step_by(2) {
        for step in 0..steps(loaded.latent) {
            let cols = (loaded.latent - step * K_STEP).min(K_STEP);
            let out = loaded.pair(block.count, row, step);
            // SAFETY: the mask has elements of rows inside the block only; room for a line of each
            // of two tiles.
            unsafe {
                let load = |row: usize| {
                    let cols = if row < block.count { cols } else { 0 };
                    let mask = (1u64 << cols).wrapping_sub(1) as u32;
                    _mm512_maskz_loadu_epi16(mask, block.row(row).wrapping_add(2 * step * K_STEP).cast())
                };
                store_pairs(load(row), load(row + 1), out);
            }
        }
    }
}
}

impl Drop for AmxTiles {
    fn drop(&mut self) {
        // SAFETY: `new` has asserted that the CPU has tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Rounds of a measurement, with four tile products each. Four accumulators hide the latency of a
/// product.
const PEAK_ROUNDS: usize = 20_000;

/// Multiply-adds per second of the instruction `$dot` on one core.
macro_rules! peak {
    ($dot:literal, $terms:literal) => {{
        let tiles = AmxTiles::new();
        let start = Instant::now();
        // SAFETY: the tiles are configured; nothing in memory is touched.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                "tilezero tmm6",
                "tilezero tmm7",
                "2:",
                concat!($dot, " tmm0, tmm4, tmm6"),
                concat!($dot, " tmm1, tmm4, tmm7"),
                concat!($dot, " tmm2, tmm5, tmm6"),
                concat!($dot, " tmm3, tmm5, tmm7"),
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) PEAK_ROUNDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(tiles);
        (PEAK_ROUNDS * 4 * TILE_ROWS * 16 * $terms) as f64 / seconds
    }};
}

/// bf16 multiply-adds per second of one core's tiles, without loads.
pub(crate) fn bf16_peak() -> f64 {
    peak!("tdpbf16ps", 32)
}

/// int8 multiply-adds per second of one core's tiles, without loads.
pub(crate) fn integer_peak() -> f64 {
    peak!("tdpbssd", 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::ManuallyDrop;

    #[test]
    fn a_product_without_steps_stores_what_it_is_added_to() {
        // Neither configured nor released: no tile instruction runs, so that any CPU will do.
        let mut tiles = ManuallyDrop::new(AmxTiles(PhantomData));
        let from: Vec<f32> = (0..2 * TILE_ROWS * NR).map(|i| i as f32).collect();
        let stride = NR + 3;
        for given in [None, Some((from.as_ptr(), NR * 4))] {
            let mut to = vec![-1.0_f32; 2 * TILE_ROWS * stride];
            let address = (to.as_mut_ptr(), stride * 4);
            // SAFETY: rows with these strides; of the factors nothing is read.
            unsafe {
                tiles.multiply::<2>(([std::ptr::null(); 2], 0), std::ptr::null(), 0, given, address);
            }
            for (row, to) in to.chunks_exact(stride).enumerate() {
                let expected = |at: usize| if given.is_some() { from[row * NR + at] } else { 0.0 };
                assert!((0..NR).all(|at| to[at] == expected(at)), "row {row}: {to:?}");
                assert!(to[NR..].iter().all(|padding| *padding == -1.0), "row {row}: {to:?}");
            }
        }
        // Half the rows, added to in place.
        let mut sums = from.clone();
        let address = sums.as_mut_ptr();
        // SAFETY: as above.
        unsafe {
            let from = Some((address.cast_const(), NR * 4));
            tiles.multiply::<1>(([std::ptr::null()], 0), std::ptr::null(), 0, from, (address, NR * 4));
        }
        assert_eq!(sums, from);
    }
}
