//! Stores of keys, values and latents to the KV cache.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

pub(super) const LATENT_STORE: Operation = Operation {
    name: "latent_store",
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[LATENT, K_ROPE],
    outputs: Outputs::Ports(&[]),
    kv: KvUse { stores: true, layers: &[KvLayerKind::Latent], row: LATENT_ROW, ..KvUse::NONE },
    kernels: RequiredKernels::Own(OpKind::LatentStore),
    // Each thread stores whole rows, so a folded norm is computed once per row.
    folds: Folds { norm: NormFold::OwnRows, rope: true, ..Folds::NONE },
    shape_rule: ShapeRule::Attention,
    cost: |at| NodeCost { cache_bytes: at.rows * at.kv_row_bytes, ..NodeCost::default() },
    reference: OpReference {
        cache_bytes: "rows*kv_row_bytes",
        ..OpReference::new(
            "Stores each row's latent and rotated key in the KV cache: the partial_rope_concat of a latent cache. Norm and \
             rotation are usually folded into it.",
            "cache[p] ← [c | k_rope]",
            MLA,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const EXPANDED_STORE: Operation = Operation {
    name: "expanded_store",
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[LATENT, K_ROPE],
    outputs: Outputs::Ports(&[]),
    slots: &[K_B, V_B, KV_B],
    weights_fit: some_projection,
    kv: KvUse {
        stores: true,
        layers: &[KvLayerKind::Expanded],
        row: "heads · (nope + rope + v) elements per row",
        ..KvUse::NONE
    },
    // `k_b` is stored transposed (its rows are elements of the latent), so expanding keys needs
    // products across its rows.
    kernels: RequiredKernels::PerWeight(
        |slot| if slot == "k_b" { OpKind::LinearT } else { OpKind::Linear },
        &[],
    ),
    folds: Folds { rope: true, ..Folds::NONE },
    shape_rule: ShapeRule::Attention,
    cost: |at| NodeCost {
        weight_bytes: at.weight_bytes(1.0),
        cache_bytes: at.rows * at.kv_row_bytes,
        flops: at.matmul_flops(at.rows),
        ..NodeCost::default()
    },
    reference: OpReference {
        weight_bytes: "weight_bytes",
        cache_bytes: "rows*kv_row_bytes",
        flops: "2*rows*weights",
        ..OpReference::new(
            "Stores each row's keys and values of every head in the KV cache: what attention without a latent cache stores. \
             Its steps are kv_lora_decompress (c to k_nope and v), partial_rope_concat ([k_nope | k_rope]) and the store.",
            "cache[p] ← [W_UK c | k_rope | W_UV c] of every head",
            MLA,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const KEY_VALUE_STORE: Operation = Operation {
    name: "key_value_store",
    made_by: NodeMaker::Pass("expand_stores"),
    inputs: &[Port::f32("key", "rows × heads × (nope + rope)"), Port::f32("value", "rows × heads × v")],
    outputs: Outputs::Ports(&[]),
    kv: KvUse {
        stores: true,
        layers: &[KvLayerKind::Expanded],
        row: "heads · (nope + rope + v) elements per row",
        ..KvUse::NONE
    },
    shape_rule: ShapeRule::Attention,
    cost: |at| NodeCost { cache_bytes: at.rows * at.kv_row_bytes, ..NodeCost::default() },
    reference: OpReference {
        cache_bytes: "rows*kv_row_bytes",
        ..OpReference::new(
            "Stores each row's keys and values of every head in the KV cache.",
            "cache[p] ← [key | v] of every head",
            MLA,
        )
    },
    ..Operation::DEFAULT
};
