//! Latent in a page: `backend-wgpu` compiled to WebAssembly, on the browser's WebGPU. On any other target this crate is empty.
//!
//! * `exports`: what a page calls.
//! * `model`: a model that was loaded, and its conversation.
//!
//! Exports that wait for the device return promises (`jspi`): the engine and the backend are those of the program, which wait where they must,
//! and a browser suspends them meanwhile (JavaScript Promise Integration). `build.sh` makes the folder that a web server can offer; the page is in
//! `docs/web/`.
#![cfg(target_family = "wasm")]

mod exports;
mod model;
