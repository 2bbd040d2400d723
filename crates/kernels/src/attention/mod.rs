//! MLA attention over the KV cache.
//!
//! * `mla_decode`: the absorbed path. Queries are in latent space, and a cached latent is both key
//!   and value. The KV range of a token may be split (flash decoding): a call computes the
//!   [`PartialSoftmax`] of one split, and [`combine_splits`] combines them in order.
//! * `mla_prefill`: the naive path, over keys and values expanded to full heads in blocks of
//!   [`KvElement`]s.
//! * `softmax`: online softmax, one per arithmetic (f32, f16, bf16).
//! * `tiers`: every kernel compiled for every ISA.

mod args;
mod expanded;
#[cfg(target_arch = "x86_64")]
mod gemm_f16;
mod key_mask;
mod kv_element;
mod mla_decode;
mod mla_prefill;
mod scratch;
mod softmax;
mod split_kv;
pub(crate) mod tiers;
mod unroll;

pub use args::{AttendArgs, AttendExpandedArgs, AttendExpandedFn, AttendFn, ExpandArgs, ExpandKeysFn};
pub use expanded::{ExpandedKv, HeadWidths, KeyBlocks, KeyOrder};
pub(crate) use mla_decode::{QuantizedQueries, queries_len};

pub use key_mask::KeyMask;
pub use kv_element::{KEYS, KvElement};
pub use split_kv::{PartialSoftmax, combine_splits, partial_softmax_len};
