//! `include/latent.h` must equal the output of cbindgen. `UPDATE_HEADER=1` in the environment
//! updates the file.
#![allow(missing_docs, reason = "tests")]

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_src(folder.join("src/lib.rs"))
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = folder.join("include/latent.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed,
        made,
        "{} is old: UPDATE_HEADER=1 cargo test --release -p latent-capi --test header",
        path.display()
    );
    for name in [
        "latent_model_load",
        "latent_generate",
        "latent_chat",
        "latent_logits",
        "latent_gemm_multiply",
        "LATENT_INT4_SYM",
        "LATENT_ABI_VERSION 1",
    ] {
        assert!(made.contains(name), "{name}");
    }
}
