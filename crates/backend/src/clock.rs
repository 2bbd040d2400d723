//! The clock of steps: std's, which in a browser would panic; there it is the page's.

#[cfg(not(target_family = "wasm"))]
pub use std::time::Instant;
#[cfg(target_family = "wasm")]
pub use web_time::Instant;
