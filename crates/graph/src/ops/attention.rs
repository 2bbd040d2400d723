//! Attention as a circuit names it, and the operations of its lowerings.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

pub(super) const MLA_ATTENTION: Operation = Operation {
    name: "mla_attention",
    lowered_by: Some("lower_mla"),
    inputs: &[Q_NOPE, Q_ROPE, LATENT, K_ROPE, SELECTED],
    outputs: Outputs::Ports(&[ATTN]),
    slots: &[K_B, V_B, KV_B, LORA_KV_A, LORA_KV_B],
    weights_fit: some_projection,
    // It names no KV layer: `lower_mla` decides between latent and expanded rows.
    kv: KvUse { stores: true, attends: true, layers: &[], row: "" },
    shape_rule: ShapeRule::Attention,
    reference: OpReference::new(
        "Multi-head latent attention as the circuit says it. `lower_mla` makes a cache store and one or two attention paths of it.",
        "o = Σⱼ softmaxⱼ(s · (q_nope · W_UK cⱼ + q_rope · k_ropeⱼ)) · W_UV cⱼ",
        MLA,
    ),
    ..Operation::DEFAULT
};

pub(super) const ABSORB_K: Operation = Operation {
    name: "absorb_k",
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[Q_NOPE, Q_ROPE],
    outputs: Outputs::Ports(&[Q_LATENT]),
    slots: &[K_B, KV_B],
    weights_fit: some_projection,
    // Absorption multiplies with W_UKᵀ: `k_b` is stored transposed, so its rows are read, while
    // `kv_b` needs products across its rows.
    kernels: RequiredKernels::PerWeight(
        |slot| if slot == "kv_b" { OpKind::LinearT } else { OpKind::Linear },
        &[],
    ),
    // It copies the rope part anyway, and can rotate it on the way.
    folds: Folds { rope: true, ..Folds::NONE },
    shape_rule: ShapeRule::Attention,
    cost: |at| projection_cost(at, at.width(1)),
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*heads*nope*kv_lora",
        ..OpReference::new(
            "Projects the queries into latent space, so that they meet the latents themselves.",
            "q̃ = [W_UKᵀ q_nope | q_rope]",
            ABSORBED,
        )
    },
    ..Operation::DEFAULT
};

/// What the two forms of attention in latent space share: MQA with one key/value row per token.
const IN_LATENT_SPACE: Operation = Operation {
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[Q_LATENT, SELECTED],
    outputs: Outputs::Ports(&[LATENT_MIX]),
    kv: KvUse { attends: true, layers: &[KvLayerKind::Latent], row: LATENT_ROW, ..KvUse::NONE },
    folds: Folds { kv_splits: SplitFold::Leaves, ..Folds::NONE },
    shape_rule: ShapeRule::Attention,
    check: |node| check_partials(node, |node| node.outputs.clone()),
    cost: latent_attention_cost,
    ..Operation::DEFAULT
};

pub(super) const ATTEND_LATENT: Operation = Operation {
    name: "attend_latent",
    kernels: RequiredKernels::Own(OpKind::AttendLatent),
    reference: latent_attention_reference(
        "Attention of all heads to one row per token, whose first kv_lora elements are its value too. A cached row is read once for \
             all heads.",
        "õ = Σⱼ softmaxⱼ(s · q̃ · [cⱼ | k_ropeⱼ]) · cⱼ",
        ABSORBED,
    ),
    ..IN_LATENT_SPACE
};

pub(super) const ATTEND_SEPARATE: Operation = Operation {
    name: "attend_separate",
    kernels: RequiredKernels::Own(OpKind::AttendSeparate),
    reference: latent_attention_reference(
        "The same as `attend_latent`, with the scores of content and rope computed separately and added.",
        "õ = Σⱼ softmaxⱼ(s · (q̃_c · cⱼ + q_rope · k_ropeⱼ)) · cⱼ",
        "DeepSeek-V3's published inference code",
    ),
    ..IN_LATENT_SPACE
};

pub(super) const ABSORB_V: Operation = Operation {
    name: "absorb_v",
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[LATENT_MIX],
    outputs: Outputs::Ports(&[ATTN]),
    slots: &[V_B, KV_B],
    weights_fit: some_projection,
    kernels: RequiredKernels::PerWeight(|_| OpKind::Linear, &[]),
    folds: Folds { kv_splits: SplitFold::Combines, ..Folds::NONE },
    shape_rule: ShapeRule::Attention,
    check: |node| check_partials(node, |node| node.inputs.clone()),
    cost: |at| projection_cost(at, 0.0),
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*heads*v*kv_lora",
        ..OpReference::new(
            "Projects the attention result from latent space to each head's values.",
            "o = W_UV õ",
            ABSORBED,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const ATTEND_EXPANDED: Operation = Operation {
    name: "attend_expanded",
    made_by: NodeMaker::Pass("lower_mla"),
    inputs: &[Q_NOPE, Q_ROPE, SELECTED],
    outputs: Outputs::Ports(&[ATTN]),
    slots: &[K_B, V_B, KV_B],
    weights_fit: |weights| {
        let expands = weights.kv == Some(KvLayerKind::Latent);
        if (weights.count > 0) == expands {
            Ok(())
        } else {
            Err("W_UK and W_UV over latents, none over expanded rows")
        }
    },
    kv: KvUse {
        attends: true,
        layers: &[KvLayerKind::Latent, KvLayerKind::Expanded],
        row: "latent or expanded rows",
        ..KvUse::NONE
    },
    // Values are expanded by a matmul. Keys have their own kernel, which reads W_UK dequantized.
    kernels: RequiredKernels::PerWeight(
        |slot| if slot == "k_b" { OpKind::ExpandKeys } else { OpKind::Linear },
        &[OpKind::ExpandKeys, OpKind::AttendExpanded],
    ),
    // It multiplies all cached rows, so kernels for many rows pay in prefill.
    kernel_rows: KernelRows::Bucket,
    shape_rule: ShapeRule::Attention,
    cost: |at| {
        let attend = 2.0 * at.pairs * at.heads * (at.width(0) + at.width(1) + at.out_width);
        let expand = if at.kv == Some(KvLayerKind::Latent) { at.matmul_flops(at.kv_len) } else { 0.0 };
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            cache_bytes: at.kv_len * at.kv_row_bytes,
            flops: attend + expand,
            ..NodeCost::default()
        }
    },
    reference: OpReference {
        weight_bytes: "weight_bytes",
        cache_bytes: "kv_len*kv_row_bytes",
        flops: "2*pairs*heads*(nope+rope+v)+2*kv_len*weights",
        ..OpReference::new(
            "Attention over keys and values of every head, expanded from the cached latents for a group of heads at a time, or read \
             from an expanded cache (then without weights). Its steps are kv_lora_decompress (each cⱼ to k_nope and v), \
             partial_rope_concat ([k_nope | k_rope]) and attention.",
            "kⱼ = [W_UK cⱼ | k_ropeⱼ],  vⱼ = W_UV cⱼ;  o = Σⱼ softmaxⱼ(s · q · kⱼ) · vⱼ",
            MLA,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const KV_LORA_DECOMPRESS: Operation = Operation {
    name: "kv_lora_decompress",
    made_by: NodeMaker::Pass("expand_stores"),
    inputs: &[LATENT],
    outputs: Outputs::Ports(&[
        Port::f32("k_nope", "rows × heads × nope"),
        Port::f32("value", "rows × heads × v"),
    ]),
    slots: &[K_B, V_B, KV_B],
    weights_fit: some_projection,
    shape_rule: ShapeRule::Attention,
    cost: matmul_cost,
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*weights",
        ..OpReference::new(
            "Expands each row's latent to the keys without position and the values of every head.",
            "k_nope = W_UK c,  v = W_UV c",
            MLA,
        )
    },
    ..Operation::DEFAULT
};
