//! Properties of a model and its tensors that the rules of a mix use.

use crate::quantize::weights::SourceTensor;
use latent_formats::FormatError;
use latent_formats::gguf::Metadata;

/// Sizes of a model, from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelShape {
    pub architecture: String,
    pub experts: u64,
    /// Query heads per key-value head of the first layer.
    pub gqa: u64,
    /// Number of layers, including those for multi-token prediction.
    pub layers: u64,
    /// Whether the token embedding is also the output matrix.
    pub tied: bool,
}

impl ModelShape {
    pub(crate) fn read(metadata: &Metadata, tensors: &[SourceTensor]) -> Result<ModelShape, FormatError> {
        let architecture = metadata.str("general.architecture")?.unwrap_or_default().to_owned();
        let number = |key: &str| metadata.u64(&format!("{architecture}.{key}"));
        let heads = first(metadata, &format!("{architecture}.attention.head_count"))?.unwrap_or(0);
        let kv_heads = first(metadata, &format!("{architecture}.attention.head_count_kv"))?.unwrap_or(heads);
        Ok(ModelShape {
            experts: number("expert_count")?.unwrap_or(0),
            // MLA has one KV head in GGUF files with split `kv_b`: the ratio is the number of
            // heads.
            gqa: heads.checked_div(kv_heads).unwrap_or(0),
            layers: number("block_count")?.unwrap_or(0),
            tied: !tensors.iter().any(|tensor| tensor.name == "output.weight"),
            architecture,
        })
    }
}

/// Reads a number, or the first one of an array with one per layer.
fn first(metadata: &Metadata, key: &str) -> Result<Option<u64>, FormatError> {
    match metadata.get(key) {
        Some(latent_formats::gguf::Value::Array(_)) => {
            Ok(metadata.numbers(key)?.and_then(|all| all.first().map(|v| *v as u64)))
        }
        _ => metadata.u64(key),
    }
}

/// Role of a tensor in the rules of mixes. MLA's projections other than `attn_kv_b` and
/// `attn_output` are [`Other`](TensorRole::Other).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorRole {
    Output,
    Embedding,
    /// `attn_v`, `attn_kv_b` and the joint `attn_qkv`.
    Value,
    Key,
    Query,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

// Parts of names: experts (`ffn_up_exps`) have the roles of dense blocks (`ffn_up`).
const ROLES: [(&str, TensorRole); 9] = [
    ("attn_qkv.weight", TensorRole::Value),
    ("attn_kv_b.weight", TensorRole::Value),
    ("attn_v.weight", TensorRole::Value),
    ("attn_k.weight", TensorRole::Key),
    ("attn_q.weight", TensorRole::Query),
    ("attn_output.weight", TensorRole::AttentionOutput),
    ("ffn_up", TensorRole::Up),
    ("ffn_gate", TensorRole::Gate),
    ("ffn_down", TensorRole::Down),
];

impl TensorRole {
    pub(crate) fn of(name: &str) -> TensorRole {
        match name {
            "output.weight" => TensorRole::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => TensorRole::Embedding,
            _ => ROLES
                .iter()
                .find(|(part, _)| name.contains(part))
                .map_or(TensorRole::Other, |(_, role)| *role),
        }
    }
}

/// The layer of `blk.N.…`. `None` for other tensors.
pub(crate) fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Columns, rows and matrices of a shape, outermost dimension first.
pub(crate) fn columns_rows_matrices(shape: &[usize]) -> (usize, usize, usize) {
    let from_end = |n: usize| shape.len().checked_sub(n).and_then(|i| shape.get(i)).copied().unwrap_or(1);
    let matrices = shape.iter().rev().skip(2).product();
    (from_end(1), from_end(2), matrices)
}
