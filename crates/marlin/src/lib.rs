//! FP4 and INT4 GEMM: activations of 16 or 32 bits times weights of 4 bits with group scales
//! (W4A16), accumulated in f32.
//!
//! ```
//! use latent_marlin::{Input, Marlin, Shape, pack_fp4};
//! let shape = Shape { k: 64, n: 48, group: 32 };
//! let dense: Vec<f32> = (0..64 * 48).map(|i| (i % 13) as f32 - 6.0).collect();
//! let packed = pack_fp4(&dense, shape)?; // words [K/8, N], scales [K/group, N]
//! let mut marlin = Marlin::new(2)?; // two threads
//! let (x, mut y) = (vec![1.0; 3 * 64], vec![0.0; 3 * 48]);
//! marlin.multiply(&packed.weight()?, Input::F32(&x), 3, &mut y)?; // y = x · W
//! assert!(y.iter().all(|sum| (-64.0..64.0).contains(sum)));
//! # Ok::<(), latent_marlin::Error>(())
//! ```
//!
//! * [`Weight`]: a checked weight in the caller's memory, described by [`QuantType`], [`Scales`]
//!   and [`Shape`]. [`pack_fp4`], [`pack_u4`] and [`pack_u4_sym`] pack a dense weight;
//!   [`pack_gptq`] also uses the Hessian of its inputs.
//! * [`Marlin`]: products and dequantization with a pool of threads. [`Plan`] selects the kernel
//!   for a shape; [`Options`] force another one.
//! * [`GemmDevice`]: products on a GPU. A [`ResidentWeight`] and each [`DeviceArray`] stay in its
//!   memory (feature `gpu`).
//!
//! CPU kernels are in `latent-kernels`, folder `w4`; GPU kernels are in `latent-backend-wgpu`,
//! folder `matmul/w4`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod device;
mod error;
mod input;
mod multiply;
mod pack;
mod pack_gptq;
mod plan;
mod weight;
mod workers;

pub use device::{DeviceArray, DevicePlan, GemmDevice, ResidentWeight};
pub use error::Error;
pub use half;
pub use input::Input;
pub use latent_quant::gptq::{GptqError, GptqOptions};
pub use multiply::Marlin;
pub use pack::{Packed, pack_fp4, pack_u4, pack_u4_sym};
pub use pack_gptq::{add_inputs, pack_gptq};
pub use plan::{Activations, Kernel, Options, Plan};
pub use weight::{QuantType, Scales, Shape, Weight};

/// The examples of docs/marlin.md run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/marlin.md")]
struct Documentation;
