//! Limits on the claims of files. They are far above any real model, and low enough that no claim
//! can exhaust memory.

/// Maximum number of metadata keys of a GGUF file.
pub const MAX_KEYS: u64 = 1 << 14;
pub const MAX_KEY_BYTES: u64 = 1 << 16;
/// Maximum bytes of a metadata string; the longest ones are chat templates.
pub const MAX_STRING_BYTES: u64 = 4 << 20;
/// Maximum number of tensors of a GGUF file. The largest models have some thousands, because all
/// experts of a layer are one tensor.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Maximum number of tensors of a model in safetensors files, where each expert has its own. The
/// largest models have some 200 000.
pub const MAX_FOLDER_TENSORS: usize = 1 << 19;
/// Maximum bytes of a tensor's name.
pub const MAX_NAME_BYTES: u64 = 1 << 10;
/// Maximum number of dimensions of a GGUF tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMENSIONS: u32 = 4;
/// Maximum number of elements of a metadata array.
pub const MAX_ARRAY: u64 = 1 << 28;
/// Maximum alignment of tensor data.
pub const MAX_ALIGNMENT: u32 = 1 << 20;
/// Maximum number of files of a sharded model.
pub const MAX_SHARDS: usize = 4096;
/// Maximum bytes of a safetensors header. The safetensors library has the same limit.
pub const MAX_SAFETENSORS_HEADER: u64 = 100_000_000;
/// Maximum number of dimensions of a safetensors tensor.
pub const MAX_SAFETENSORS_DIMENSIONS: usize = 8;
/// Maximum bytes of a JSON file that is parsed to values (config.json, tokenizer_config.json,
/// generation_config.json).
pub const MAX_JSON_BYTES: u64 = 16 << 20;
/// Maximum number of values of such a file. A value can need a hundred times its bytes in memory.
pub const MAX_JSON_VALUES: usize = 1 << 17;
/// Maximum bytes of a folder's vocabulary; the largest published tokenizer.json has 35 million.
pub const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// Maximum bytes of a circuit file; those of the repository have some 20 KB.
pub const MAX_CIRCUIT_BYTES: u64 = 1 << 20;
/// Maximum bytes of a profile, the output of `latent profile --json`.
pub const MAX_PROFILE_BYTES: u64 = 64 << 20;
/// Maximum bytes of a dump of activations.
pub const MAX_DUMP_BYTES: u64 = 64 << 30;
/// Maximum number of LoRA adapters of one model.
pub const MAX_ADAPTERS: usize = 64;
/// Maximum bytes of model.safetensors.index.json.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    // Sizes come from files. The root Cargo.toml turns overflow checks on for this crate.
    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
