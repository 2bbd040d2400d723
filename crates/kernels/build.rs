//! Tells the crate how far it is optimized.
#![allow(clippy::print_stdout, reason = "what a build script prints is for cargo")]

fn main() {
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo:rustc-env=LATENT_KERNELS_OPT_LEVEL={level}");
    println!("cargo:rerun-if-changed=build.rs");
}
