//! Ports, slots, sources and costs that several operations share.

use super::operation::*;
use super::port::*;
use super::shapes::{NodeShapes, ShapeRule, ValueShape};

pub(super) const X: Port = Port::f32("x", "rows × width");
/// The result of an operation that overwrites [`X`].
pub(super) const Y_IN_PLACE: Port = Port::f32("y", "rows × width").with_note("in place of x");
/// Defaults of operations that overwrite [`X`] element by element.
pub(super) const IN_PLACE: Operation = Operation {
    built: NodeConstruction::InPlace,
    inputs: &[X],
    outputs: Outputs::Ports(&[Y_IN_PLACE]),
    check: |node| node.keeps_width(),
    ..Operation::DEFAULT
};
pub(super) const Q_NOPE: Port = Port::f32("q_nope", "rows × heads × nope");
pub(super) const Q_ROPE: Port = Port::f32("q_rope", "rows × heads × rope").or_none();
pub(super) const LATENT: Port = Port::f32("latent", "rows × kv_lora");
/// The key that all heads share, rotated if the model rotates.
pub(crate) const K_ROPE: Port = Port::f32("k_rope", "rows × rope").or_none();
/// The ascending positions that each row of sparse attention attends to. A row that sees fewer
/// tokens than the port has elements attends to all of them, and ignores the port.
pub(super) const SELECTED: Port = Port::u32("selected", "rows × index_topk").or_none();
pub(super) const ATTN: Port = Port::f32("attn", "rows × heads × v");
/// A query in latent space with its rope part.
pub(super) const Q_LATENT: Port = Port::f32("q_latent", "rows × heads × (kv_lora + rope)");
pub(super) const LATENT_MIX: Port = Port::f32("latent_mix", "rows × heads × kv_lora");
/// Partial results of the KV splits of a row, one group of heads after another. Per split: the
/// running maximum and sum of each head, and its unscaled mix of latents.
pub(crate) const PARTIALS: Port = Port::f32("partials", "split rows × heads × splits*(kv_lora + 2)");
pub(super) const TOPK_IDS: Port = Port::u32("topk_ids", "rows × num_experts_per_tok");
pub(super) const TOPK_WEIGHTS: Port = Port::f32("topk_weights", "rows × num_experts_per_tok");
/// The activated rows of experts.
pub(super) const SORTED: Port =
    Port::f32("a", "rows·num_experts_per_tok × moe_ffn").with_note("sorted by expert");

/// One element per element of a row.
pub(super) const ROW_WEIGHT: WeightSlot = WeightSlot::new("any", "width");
pub(super) const K_B: WeightSlot = WeightSlot::new("k_b", "heads × kv_lora × nope").with_note("W_UK");
pub(super) const V_B: WeightSlot = WeightSlot::new("v_b", "heads × v × kv_lora").with_note("W_UV");
/// Both in one tensor.
pub(super) const KV_B: WeightSlot =
    WeightSlot::new("kv_b", "heads * (nope + v) × kv_lora").with_note("both in one, instead of them");

/// A of an adapter of kv_b.
pub(super) const LORA_KV_A: WeightSlot = WeightSlot::new("lora_a", "lora_rank × kv_lora").with_note("A");
pub(super) const LORA_KV_B: WeightSlot =
    WeightSlot::new("lora_b", "heads * (nope + v) × lora_rank").with_note("B");

pub(super) const MLA: &str = "DeepSeek-V2, arXiv:2405.04434, section 2.1";
pub(super) const ABSORBED: &str =
    "DeepSeek-V2, arXiv:2405.04434, section 2.1.2 and appendix C: matrices absorbed";
/// Sparse attention.
pub(super) const DSA: &str = "DeepSeek-V3.2-Exp, section 2.1: DeepSeek Sparse Attention";
pub(super) const KDA: &str = "Kimi Linear, arXiv:2510.26692";
pub(super) const EXPERTS: &str =
    "DeepSeekMoE, arXiv:2401.06066; DeepSeek-V3, arXiv:2412.19437, section 2.1.2";
pub(super) const LORA: &str = "Hu and others, arXiv:2106.09685";
pub(super) const OURS: &str = "ARCHITECTURE.md";
/// The pass that creates the operations between ranks.
pub(super) const COLLECTIVES: &str = "insert_collectives";

/// The cost of f32 rows sent to each other rank.
pub(super) fn link_cost(at: &CostInput<'_>) -> NodeCost {
    NodeCost { link_bytes: 4.0 * at.rows * at.heads * at.width(0), ..NodeCost::default() }
}

/// The row of a token in a latent KV layer.
pub(super) const LATENT_ROW: &str = "kv_lora + rope elements per row";

/// Elements of a KV split's partial result in addition to the head's mix: the running maximum and
/// sum of its softmax.
pub(crate) const SOFTMAX_STATE: usize = 2;

/// Checks that partial results of KV splits, if any follow the mix in `values`, hold whole splits
/// of all its heads.
pub(super) fn check_partials(node: &mut NodeShapes<'_>, values: impl Fn(&NodeShapes<'_>) -> Vec<ValueShape>) {
    let [mix, partials] = &values(node)[..] else { return };
    let split = mix.width + SOFTMAX_STATE;
    let whole = partials.width >= split && partials.width.is_multiple_of(split);
    if partials.heads != mix.heads || !whole || !matches!(partials.rows, RowCount::AtMost(1..)) {
        let text = format!(
            "{} has {:?} × {} × {} elements, expected some rows × {} heads × a multiple of {split}",
            partials.name, partials.rows, partials.heads, partials.width, mix.heads
        );
        node.wrong(ShapeRule::Attention, PARTIALS.name.to_owned(), text);
    }
}

/// For operations that need W_UK, W_UV or both. Rule A49 checks which ones.
pub(super) fn some_projection(weights: &NodeWeights) -> Result<(), &'static str> {
    if weights.count > 0 { Ok(()) } else { Err("W_UK or W_UV") }
}

/// The cost of a low-rank term per head, whose part of B has `width` rows. A is multiplied for
/// every head.
pub(super) fn lora_attention_cost(at: &CostInput<'_>, width: f64) -> NodeCost {
    let a = at.weights.iter().find(|weight| weight.slot == "lora_a");
    // The rows of A are its rank.
    let (rank, elements) = a.map_or((0.0, 0.0), |a| (a.bytes / a.row_bytes.max(1.0), a.elements));
    let flops = 2.0 * at.rows * at.heads * (rank * width + elements);
    NodeCost { weight_bytes: at.weight_bytes(1.0), flops, ..NodeCost::default() }
}

/// For operations with exactly one weight.
pub(super) fn one_weight(weights: &NodeWeights) -> Result<(), &'static str> {
    if weights.count == 1 { Ok(()) } else { Err("one") }
}

/// The cost of multiplying the step's rows with every weight.
pub(super) fn matmul_cost(at: &CostInput<'_>) -> NodeCost {
    NodeCost { weight_bytes: at.weight_bytes(1.0), flops: at.matmul_flops(at.rows), ..NodeCost::default() }
}

/// Checks that rows keep their width and that the weight has one element per element of a row.
pub(super) fn check_row_weight(node: &mut NodeShapes<'_>) {
    node.keeps_width();
    if let Some(weight) = node.weights.first().copied() {
        node.norm_width(weight.slot, weight.shape);
    }
}

/// The cost of a per-head projection with W_UK or W_UV. Of a combined kv_b it reads only the rows
/// of keys or of values. `copied` elements of the output (the rope part of a query) are not
/// computed.
pub(super) fn projection_cost(at: &CostInput<'_>, copied: f64) -> NodeCost {
    let mut share = 1.0;
    if at.weights.iter().any(|w| w.slot == "kv_b") {
        let both: f64 = at.weights.iter().map(|w| w.elements).sum();
        // The read part of `kv_b`: elements of W_UK or W_UV over those of both.
        share = (at.heads * at.width(0) * (at.out_width - copied) / both).min(1.0);
    }
    NodeCost {
        weight_bytes: at.weight_bytes(share),
        flops: at.matmul_flops(at.rows) * share,
        ..NodeCost::default()
    }
}

/// The cost of attention in latent space: scores over kv_lora + rope elements, values of kv_lora
/// elements, one cached row for all heads.
pub(super) fn latent_attention_cost(at: &CostInput<'_>) -> NodeCost {
    // In sparse attention, the width of the second input is the maximum number of attended
    // positions per row.
    let most = at.widths.get(1).map_or(f64::INFINITY, |selected| at.rows * selected);
    let flops = 2.0 * at.pairs.min(most) * at.heads * (at.width(0) + at.out_width);
    let cache_bytes = at.kv_len.min(most) * at.kv_row_bytes;
    NodeCost { cache_bytes, flops, ..NodeCost::default() }
}

/// The description of attention in latent space, with the costs of [`latent_attention_cost`].
pub(super) const fn latent_attention_reference(
    what: &'static str,
    formula: &'static str,
    source: &'static str,
) -> OpReference {
    OpReference {
        cache_bytes: "kv_len*kv_row_bytes",
        flops: "2*pairs*heads*(kv_lora+rope+kv_lora)",
        ..OpReference::new(what, formula, source)
    }
}
