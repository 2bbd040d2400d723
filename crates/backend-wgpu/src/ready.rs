//! Waiting for drivers and devices. Natively, the calling thread blocks. In a browser, where a
//! page's thread must not block, WebAssembly is suspended.

#[cfg(target_family = "wasm")]
mod browser;
#[cfg(not(target_family = "wasm"))]
mod native;

#[cfg(target_family = "wasm")]
pub(crate) use browser::{QueueSubmission, caught, done, ready, received, submitted};
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{QueueSubmission, caught, done, ready, received, submitted};
