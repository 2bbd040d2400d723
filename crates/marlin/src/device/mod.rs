//! Products on a GPU: weights and rows stay in its memory. A build without the feature `gpu` has the same types, and opens no device.
//!
//! * `resident`: devices, weights and arrays; `device_plan`: the kernel that a shape gets.
//! * `adapter` or, without the feature, `absent`: what both call. `process`: what a forked child must not use.

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(feature = "gpu")]
mod adapter;
mod device_plan;
mod resident;

#[cfg(not(feature = "gpu"))]
use absent as build;
#[cfg(feature = "gpu")]
use adapter as build;
pub use device_plan::DevicePlan;
pub use resident::{DeviceArray, GemmDevice, ResidentWeight};
