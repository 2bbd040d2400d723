//! Guesses the type of a file that is not a model, for its error message. Often it is a web page, a
//! Git LFS pointer or a pickle.

use std::path::Path;

/// Guesses what a file is from its first `bytes` and the extension of `path`, and says what to do.
pub(crate) fn sniff(path: &Path, bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(512)];
    if start.is_empty() {
        return EMPTY.into();
    }
    if let Some(known) = known_non_model(start) {
        return known.into();
    }
    let pickled =
        ["bin", "pt", "pth", "pkl", "ckpt"].iter().any(|end| path.extension().is_some_and(|e| e == *end));
    // PyTorch writes pickles in ZIP archives, before version 1.6 without. 0x80 is pickle's opcode
    // PROTO.
    if pickled || start.starts_with(b"PK\x03\x04") || matches!(start, [0x80, 2..=5, ..]) {
        return PICKLE.into();
    }
    if start.starts_with(b"FUGG") {
        return "it is a big-endian GGUF file; convert it to little-endian".into();
    }
    // "ggml", "ggmf", "ggjt" and "ggla" as little-endian numbers.
    if [b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|magic| start.starts_with(*magic)) {
        return "it is a GGML file, which predates GGUF; convert the original model to GGUF".into();
    }
    if start.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return "it is a text file; pass the path of a .gguf file or of a folder with config.json and \
                .safetensors files"
            .into();
    }
    let first = &start[..start.len().min(4)];
    format!("its first bytes are {first:02x?}; Latent reads .gguf files and folders of .safetensors")
}

/// Recognizes what a failed download leaves instead of a file of any type.
pub(crate) fn known_non_model(start: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(&start[..start.len().min(512)]).trim_start().to_ascii_lowercase();
    if text.starts_with("version https://git-lfs") {
        Some("it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
    } else if text.starts_with("<!doctype html") || text.starts_with("<html") {
        Some("it is a web page; download the file itself, not the page that shows it")
    } else {
        None
    }
}

pub(crate) const EMPTY: &str = "the file is empty; download it again";

pub(crate) const PICKLE: &str = "it looks like a PyTorch pickle, which can execute code when loaded and is not supported: convert the \
     model to safetensors or GGUF";
