//! The operations: one worker's part of each, given a
//! [`WorkerContext`](crate::context::WorkerContext).
//!
//! Several operations share `matmul` (one product, and inputs that workers convert together),
//! `kv_splits` (flash decoding), and `expanded_layout` and `expand` (keys and values of naive MLA).
#![allow(unsafe_code, reason = "workers write disjoint parts of shared buffers between barriers")]

pub(crate) mod attend_expanded;
pub(crate) mod attend_latent;
pub(crate) mod collective;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod expand;
pub(crate) mod expanded_layout;
pub(crate) mod experts;
pub(crate) mod gather;
pub(crate) mod indexer;
pub(crate) mod kv_splits;
pub(crate) mod kv_store;
pub(crate) mod linear;
mod lora;
pub(crate) mod matmul;
pub(crate) mod mla_projection;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod route;
