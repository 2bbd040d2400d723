//! Latent in a web page: `backend-wgpu` compiled to WebAssembly, on the browser's WebGPU. On any
//! other target this crate is empty.
//!
//! * `exports`: the functions that a page calls.
//! * `model`: a loaded model and its conversation.
//!
//! Exports that wait for the device return promises (`jspi`). The engine and the backend are the
//! same as in the program and block while they wait; JavaScript Promise Integration lets the
//! browser suspend them instead. `build.sh` makes a folder for a web server; the page is in
//! `docs/web/`.
#![cfg(target_family = "wasm")]

mod exports;
mod model;
