//! Products with weights in the formats of their files.
//!
//! * `layout`, `tiles`: the tables of block layouts and of tile sizes.
//! * `products`: state that the products of a model share, and inputs as int8 blocks.
//! * `wgsl`, `gemv`, `gemm`, `tile_order`, `matrix_tile`, `shader`: shaders, composed of the texts
//!   in the folder `wgsl/` for a format and a kernel.
//! * `weight`: a weight in device memory, and the codebooks of the IQ formats. `repack`: blocks as
//!   planes of whole words.
//! * `items`: slots of rows in buffers. `product`: calls that multiply slots of rows (heads,
//!   experts) by parts of matrices. `rows`: the same for plain rows.
//! * `sort`: items sorted by expert, for products with many rows.
//! * `w4`: kernels for 4-bit weights `[K, N]` with group scales.
//!
//! Shaders read the blocks of the file, which may begin at any byte. On devices that gain from
//! fewer loads, blocks are repacked into planes of whole words.

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
