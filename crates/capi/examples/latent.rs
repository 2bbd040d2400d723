//! The library as the C tests link it.
//!
//! `cargo test` builds examples, but no library that Rust cannot link. So this example is
//! `src/lib.rs` once more.
#![allow(
    dead_code,
    missing_docs,
    unsafe_code,
    clippy::missing_safety_doc,
    non_camel_case_types,
    reason = "as in src/lib.rs"
)]
#![allow(unreachable_pub, reason = "src/lib.rs exports the items")]

#[path = "../src/border.rs"]
mod border;
#[path = "../src/buffers.rs"]
mod buffers;
#[path = "../src/chat.rs"]
mod chat;
#[path = "../src/error.rs"]
mod error;
#[path = "../src/event.rs"]
mod event;
#[path = "../src/gemm.rs"]
mod gemm;
#[path = "../src/gemm_device.rs"]
mod gemm_device;
#[path = "../src/generate.rs"]
mod generate;
#[path = "../src/generate_options.rs"]
mod generate_options;
#[path = "../src/load_options.rs"]
mod load_options;
#[path = "../src/model.rs"]
mod model;
#[path = "../src/sized.rs"]
mod sized;
#[path = "../src/text.rs"]
mod text;
#[path = "../src/values.rs"]
mod values;
#[path = "../src/version.rs"]
mod version;
#[path = "../src/weight.rs"]
mod weight;
