//! CPU kernels: single-threaded functions over a share of the work.
//!
//! * [`table`]: every kernel with its contract; [`features`]: what this CPU has.
//! * [`MatrixView`], [`MatrixViewMut`], [`WeightMatrix`], [`QuantizedInput`]: operands.
//! * [`MatmulFn`], [`AttendFn`]: signatures of matmul and attention kernels, which plans select;
//!   the rest are row-wise functions.
//!
//! # Where a kernel is
//!
//! A folder per family. Portable, AVX2 and AVX-512 kernels are one body over the trait
//! `simd::Simd`, compiled for each ISA; kernels on f16 or bf16 arithmetic are written in
//! intrinsics. `isa` compiles functions for an ISA and has its proof token; `features` lists the
//! CPU features.
//!
//! | family | portable, AVX2, AVX-512 | AVX512-FP16 | AVX512-BF16 | AMX |
//! |---|---|---|---|---|
//! | GEMV, small batches, GEMM (quantized weights) | `matmul/quantized` | | | `matmul/amx` |
//! | GEMV, GEMM (float weights) | `matmul/float` | | | |
//! | any format, one row at a time | `matmul/dequantized` | | | |
//! | decode attention (MLA, latent space) | `attention/mla_decode/{f32, int8}` | `attention/mla_decode/{f16, int8_f16}` | `attention/mla_decode/bf16` | `attention/mla_decode/bf16` |
//! | prefill attention (expanded keys and values) | `attention/mla_prefill/f32` | `attention/mla_prefill/f16` | `attention/mla_prefill/bf16` | `attention/mla_prefill/bf16` |
//! | 4-bit weights with group scales (Marlin) | `w4` | | `w4/pairs` | |
//! | recurrence of Kimi Delta Attention | `delta` | | | |
//! | norm, RoPE, activation functions, routing | `norm`, `rope`, `elementwise`, `moe` | | | |
//!
//! So decode attention on AVX2 is `attention/mla_decode/f32.rs` (or `int8.rs`) with `simd/avx2.rs`,
//! compiled in `attention/tiers.rs`.
//!
//! # Reproducible sums
//!
//! The order of every sum depends on shapes alone: not on the batch size, nor on how rows and
//! outputs are divided among threads.
//!
//! ```
//! let mut out = [0.0; 2];
//! latent_kernels::rms_norm(&[3.0, 4.0], &[1.0, 1.0], 0.0, &mut out);
//! assert!((out[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6);
//! ```
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_mut,
        unused_imports,
        reason = "portable kernels neither prefetch nor have tables of their own"
    )
)]

/// Whether the compiler optimizes this crate. Unoptimized kernels are about three hundred times
/// slower.
pub const OPTIMIZED: bool = !matches!(env!("LATENT_KERNELS_OPT_LEVEL").as_bytes(), b"0");

mod activation;
mod attention;
mod attention_table;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod bf16_layout;
mod cpu_vendor;
mod delta;
mod elementwise;
mod features;
mod gemm;
mod indexer;
#[cfg(target_arch = "x86_64")]
mod isa;
mod kernel_fn;
mod kv_cache;
mod math;
mod matmul;
mod moe;
mod norm;
mod peak;
mod reduce;
mod rope;
mod shape;
mod simd;
mod table;
#[cfg(test)]
mod testing;
mod tiers;
mod view;
#[cfg(feature = "w4")]
mod w4;
mod weights;
mod widen;

pub use activation::{Bf16Rows, Bf16x32, Q8_BLOCK, Q8Block, Q8Rows, QuantizedInput, quantize_q8, to_bf16};
pub use attention::{
    AttendArgs, AttendExpandedArgs, AttendExpandedFn, AttendFn, ExpandArgs, ExpandKeysFn, ExpandedKv,
    HeadWidths, KEYS, KeyBlocks, KeyMask, KeyOrder, KvElement, PartialSoftmax, combine_splits,
    partial_softmax_len,
};
pub use delta::{
    DELTA_CHUNK, DeltaChunk, DeltaRow, DeltaScratch, DeltaState, bounded_decay, delta_chunk, delta_row,
    gated_norm, l2_norm, short_conv, softplus_decay,
};
pub use elementwise::{ElementwiseFn, add, axpy, relu2, scale, sigmoid_mul, silu, silu_mul, silu_row};
#[cfg(target_arch = "x86_64")]
pub use features::assume_amx;
pub use features::{features, native_tier};
pub use half;
pub use indexer::{IndexArgs, index_arithmetic, index_scores, select_largest};
pub use kernel_fn::KernelFn;
pub use kv_cache::{CacheView, load_part, load_row, store_part, store_row};
pub use math::exp;
pub use matmul::{MatmulArgs, MatmulFn, MatmulScratch, allow_avx_vnni};
pub use moe::{RouteGating, RouteGroupScore, RouteSpec, route};
pub use norm::{layer_norm, rms_norm};
pub use peak::{CorePeak, peak, read_all};
pub use rope::{RopePairing, RopeTable, rotate};
pub use shape::ShapeError;
pub use table::table;
pub use tiers::{limit_tier, tier_limit};
pub use view::{MatrixView, MatrixViewMut};
#[cfg(feature = "w4")]
pub use w4::{
    W4Args, W4Codes, W4DequantFn, W4Entry, W4Fn, W4Form, W4Input, W4Kernel, W4MatmulFn, W4Matrix, W4Scales,
    W4Scratch, W4Shape, W4Stripes, W4Unit, w4_dequant_f16, w4_reduce, w4_table, w4_zero,
};
pub use weights::{BlockScales, WeightMatrix, decode_row};
