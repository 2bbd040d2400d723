//! Products with weights in the formats of their files.
//!
//! * `layout`, `tiles`: the tables of block layouts and of tile sizes, from which every dialect of shaders takes its numbers.
//! * `products`: what the products of a model share, and inputs as int8 blocks.
//! * `wgsl`, `gemv`, `gemm`, `tile_order`, `matrix_tile`, `shader`: the WGSL dialect: texts in the folder `wgsl/`, put together for a format and a kernel.
//! * `codebook`: the codebooks of the IQ formats.
//! * `weight`: a weight in the device's memory; `repack`: its blocks as planes of whole words.
//! * `items`: slots of rows in buffers; `product`: calls that multiply slots of rows (heads, experts) with parts of matrices; `rows`: those of plain rows.
//! * `sort`: items sorted by expert, for products with many rows.
//! * `w4`: the five entries for 4-bit weights `[K, N]` with group scales.
//!
//! Shaders read the blocks of the file as they are, at any byte, or repacked into planes of whole words where a device gains from fewer loads.

mod gemm;
mod gemv;
mod items;
pub(crate) mod layout;
mod limits;
mod matrix_tile;
pub(crate) mod product;
pub(crate) mod products;
mod repack;
pub(crate) mod rows;
mod shader;
pub(crate) mod sort;
mod tile_order;
pub(crate) mod tiles;
pub(crate) mod w4;
pub(crate) mod weight;
mod wgsl;

#[cfg(test)]
pub(crate) mod tests;
