//! The clock of steps. `std::time::Instant` panics in a browser, where the page's clock replaces
//! it.

#[cfg(not(target_family = "wasm"))]
pub use std::time::Instant;
#[cfg(target_family = "wasm")]
pub use web_time::Instant;
