//! FP4 and INT4 GEMM.

pub(crate) mod devices;
pub(crate) mod functions;
mod keywords;
mod numbers;
mod pools;
pub(crate) mod resident;
mod weight;
