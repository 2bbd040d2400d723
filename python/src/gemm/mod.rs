//! FP4 and INT4 GEMM: `latent.gemm`.

pub(crate) mod functions;
mod keywords;
mod pools;
mod weight;
