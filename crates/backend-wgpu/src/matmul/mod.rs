//! Products with weights in the formats of their files.
//!
//! * `layout`, `tiles`: the tables of block layouts and of tile sizes, from which every dialect of shaders takes its numbers.
//! * `wgsl`, `shader`: the WGSL dialect: texts in the folder `wgsl/`, put together for a format and a kernel.
//! * `codebook`: the codebooks of the IQ formats.
//! * `weight`: a weight in the device's memory.
//! * `product`: calls that multiply slots of rows (heads, experts) with parts of matrices; `rows`: those of plain rows.
//! * `sort`: items sorted by expert, for products with many rows.
//! * `w4`: the five entries for 4-bit weights `[K, N]` with group scales.
//!
//! Shaders read the blocks of the file as they are, at any byte. A repack into aligned planes would save a part of each load, but a weight would be
//! copied once more while it is loaded and could not be looked up by rows (embeddings) without a second copy; blocks are read as whole cache
//! lines by neighbouring threads, so that the traffic from memory is the same.

mod codebook;
pub(crate) mod layout;
mod limits;
pub(crate) mod product;
pub(crate) mod rows;
mod shader;
pub(crate) mod sort;
pub(crate) mod tiles;
#[cfg(any(test, feature = "cases"))]
pub(crate) mod w4;
pub(crate) mod weight;
mod wgsl;

#[cfg(test)]
pub(crate) mod tests;
