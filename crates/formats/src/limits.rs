//! Limits on what a file may claim. Far above any real model; low enough that no claim can exhaust memory.

/// Metadata keys of a GGUF file.
pub const MAX_KEYS: u64 = 1 << 14;
pub const MAX_KEY_BYTES: u64 = 1 << 16;
/// Bytes of a metadata string; the longest ones are chat templates.
pub const MAX_STRING_BYTES: u64 = 4 << 20;
/// Tensors of a GGUF file; the largest models have some thousands, since all experts of a layer make one tensor.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Tensors of a model in safetensors files, where each expert has its own; the largest models have some 200 000.
pub const MAX_FOLDER_TENSORS: usize = 1 << 19;
/// Bytes of a tensor's name.
pub const MAX_NAME_BYTES: u64 = 1 << 10;
/// Dimensions of a GGUF tensor.
pub const MAX_DIMENSIONS: u32 = 4;
/// Elements of a metadata array.
pub const MAX_ARRAY: u64 = 1 << 28;
/// Largest alignment of tensor data.
pub const MAX_ALIGNMENT: u32 = 1 << 20;
/// Files of a sharded model.
pub const MAX_SHARDS: usize = 4096;
/// Bytes of a safetensors header.
pub const MAX_SAFETENSORS_HEADER: u64 = 100_000_000;
/// Dimensions of a safetensors tensor.
pub const MAX_SAFETENSORS_DIMENSIONS: usize = 8;
/// Bytes of a JSON file that is kept as values (config.json, tokenizer_config.json, generation_config.json).
pub const MAX_JSON_BYTES: u64 = 16 << 20;
/// Values of such a file, each of which may take a hundred times its bytes.
pub const MAX_JSON_VALUES: usize = 1 << 17;
/// Bytes of a folder's vocabulary; the largest published tokenizer.json has 35 million.
pub const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// Bytes of a circuit file; those of the repository have some 20 KB.
pub const MAX_CIRCUIT_BYTES: u64 = 1 << 20;
/// Bytes of a profile, as `latent profile --json` prints it.
pub const MAX_PROFILE_BYTES: u64 = 64 << 20;
/// Bytes of a dump of activations.
pub const MAX_DUMP_BYTES: u64 = 64 << 30;
/// LoRA adapters of one model.
pub const MAX_ADAPTERS: usize = 64;
/// Bytes of model.safetensors.index.json.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
