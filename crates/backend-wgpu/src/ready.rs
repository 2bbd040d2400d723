//! Waiting for drivers and devices: the calling thread blocks; in a browser, where no thread may, WebAssembly is suspended meanwhile.

#[cfg(target_family = "wasm")]
mod browser;
#[cfg(not(target_family = "wasm"))]
mod native;

#[cfg(target_family = "wasm")]
pub(crate) use browser::{QueueSubmission, caught, done, heard, ready, submitted};
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{QueueSubmission, caught, done, heard, ready, submitted};
