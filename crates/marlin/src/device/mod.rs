//! Products on a GPU: weights and rows stay in its memory. A build without the feature `gpu` has
//! the same types, but cannot open a device, so that callers need no conditional code.
//!
//! * `resident`: devices, weights and arrays, which a forked child must not use.
//! * `device_plan`: selects the kernel for a shape.
//! * `adapter` or, without the feature, `absent`: the functions that both call.

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
