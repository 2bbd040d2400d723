//! CPU compute: one folder an operation, single-threaded functions over shares of the work.
//!
//! * [`table`]: every kernel with its contract; [`features`]: what this processor offers.
//! * [`Rows`], [`RowsMut`], [`WeightMatrix`], [`QuantizedInput`]: what kernels read and write.
//! * [`MatmulFn`], [`AttendFn`]: products and attention, in tiers; the rest are plain functions.
//!
//! The order of every sum depends on shapes alone: never on how many rows a call has, nor on where a share ends.
//!
//! ```
//! let mut out = [0.0; 2];
//! latent_kernels::rms_norm(&[3.0, 4.0], &[1.0, 1.0], 0.0, &mut out);
//! assert!((out[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6);
//! ```

mod activation;
mod attention;
mod attention_table;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod bf16_layout;
mod cpu_vendor;
mod decode;
mod elementwise;
mod gemm;
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
mod tiers;
mod view;
mod weights;
mod widen;

pub use activation::{Bf16Rows, Bf16x32, Q8_BLOCK, Q8Block, Q8Rows, QuantizedInput, quantize_q8, to_bf16};
pub use attention::{
    AttendArgs, AttendExpandedArgs, AttendExpandedFn, AttendFn, ExpandArgs, ExpandKeysFn, Expanded,
    HeadWidths, KEYS, KeyBlocks, KeyOrder, KvElement, PartialSoftmax, combine_splits, partial_softmax_len,
};
#[cfg(target_arch = "x86_64")]
pub use bf16::assume_amx;
pub use decode::decode_row;
pub use elementwise::{add, axpy, relu2, scale, silu, silu_mul};
pub use half;
pub use kernel_fn::KernelFn;
pub use kv_cache::{CacheView, load_part, load_row, store_part, store_row};
pub use math::exp;
pub use matmul::{MatmulArgs, MatmulFn, Scratch, allow_avx_vnni};
pub use moe::{Gating, GroupScore, RouteSpec, route};
pub use norm::rms_norm;
pub use peak::{Peak, peak, read_all};
pub use rope::{RopePairs, RopeTable, rotate};
pub use shape::ShapeError;
pub use table::{features, table};
pub use tiers::{limit_tier, tier_limit};
pub use view::{Rows, RowsMut};
pub use weights::{BlockScales, WeightMatrix};
