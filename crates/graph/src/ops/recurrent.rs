//! Attention with a state of fixed size per sequence instead of a cache.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

const CHANNELS: &str = "rows × kda_heads*kda_width";
const TAPS: &str = "kda_heads*kda_width × taps";
const HEADS: &str = "rows × kda_heads × kda_width";

pub(super) const SHORT_CONV: Operation = Operation {
    name: "short_conv",
    inputs: &[Port::f32("q_raw", CHANNELS), Port::f32("k_raw", CHANNELS), Port::f32("v_raw", CHANNELS)],
    outputs: Outputs::Ports(&[Port::f32("q", HEADS), Port::f32("k", HEADS), Port::f32("v", HEADS)]),
    slots: &[
        WeightSlot::new("q_conv", TAPS),
        WeightSlot::new("k_conv", TAPS),
        WeightSlot::new("v_conv", TAPS),
    ],
    weights_fit: |weights| {
        if weights.count == 3 { Ok(()) } else { Err("three, of q, k and v") }
    },
    kv: KvUse {
        stores: true,
        attends: true,
        layers: &[KvLayerKind::ConvInputs],
        row: "past_taps inputs of all channels of q, k and v",
    },
    kernels: RequiredKernels::Own(OpKind::ShortConv),
    by_heads: true,
    shape_rule: ShapeRule::Attention,
    cost: |at| NodeCost {
        weight_bytes: at.weight_bytes(1.0),
        // The state is read and written once per sequence, for any number of rows.
        cache_bytes: 2.0 * at.sequences * at.kv_row_bytes,
        flops: at.matmul_flops(at.rows),
        ..NodeCost::default()
    },
    reference: OpReference {
        weight_bytes: "weight_bytes",
        cache_bytes: "2*sequences*kv_row_bytes",
        flops: "2*rows*weights",
        ..OpReference::new(
            "A causal convolution over time of every channel of queries, keys and values, then SiLU. Before the first token inputs are 0. \
                 The state of a sequence is the last inputs, which it reads and replaces.",
            "y[t] = silu(Σⱼ w[j] · x[t − taps + 1 + j])",
            KDA,
        )
    },
    ..Operation::DEFAULT
};

/// The log decay of each row of a head's state, in one of two forms.
const DECAY: Operation = Operation {
    inputs: &[Port::f32("decay_raw", "rows × kda_heads*kda_width")],
    outputs: Outputs::Ports(&[Port::f32("log_decay", "rows × kda_heads × kda_width")
        .with_note("at most 0, one for each row of a head's state")]),
    slots: &[
        WeightSlot::new("a_log", "kda_heads").with_note("the rate's logarithm"),
        WeightSlot::new("a_rate", "kda_heads")
            .with_note("the rate with either sign, in its place in GGUF files"),
        WeightSlot::new("dt_bias", "kda_heads*kda_width"),
    ],
    weights_fit: |weights| {
        // A file has one of the two forms of the rate.
        if weights.count == 2 { Ok(()) } else { Err("two: a_log or a_rate, then dt_bias") }
    },
    by_heads: true,
    shape_rule: ShapeRule::Attention,
    check: |node| {
        let slots: Vec<&str> = node.weights.iter().map(|weight| weight.slot).collect();
        if !matches!(slots[..], ["a_log" | "a_rate", "dt_bias"]) {
            let text = format!("its weights are {slots:?}, expected a_log or a_rate, then dt_bias");
            node.wrong(ShapeRule::Attention, None, text);
        }
    },
    ..Operation::DEFAULT
};

pub(super) const SOFTPLUS_DECAY: Operation = Operation {
    name: "softplus_decay",
    kernels: RequiredKernels::Own(OpKind::SoftplusDecay),
    reference: OpReference::new(
        "The log decay of each row of a head's state, without a lower bound: the form of Kimi-Linear.",
        "g = −a · softplus(z + dt_bias),  a = e^a_log = |a_rate|,  softplus(z) = ln(1 + eᶻ)",
        KDA,
    ),
    ..DECAY
};

pub(super) const BOUNDED_DECAY: Operation = Operation {
    name: "bounded_decay",
    kernels: RequiredKernels::Own(OpKind::BoundedDecay),
    reference: OpReference::new(
        "The log decay of each row of a head's state, between a bound and 0: the form of Ling-3.0. A model trained with one form does \
         not work with the other.",
        "g = bound · σ(a · (z + dt_bias)),  a = e^a_log = |a_rate|",
        KDA,
    ),
    ..DECAY
};

pub(super) const DELTA_RULE: Operation = Operation {
    name: "delta_rule",
    inputs: &[
        Port::f32("q", HEADS),
        Port::f32("k", HEADS),
        Port::f32("v", HEADS),
        Port::f32("log_decay", HEADS),
        Port::f32("beta_raw", "rows × kda_heads"),
    ],
    outputs: Outputs::Ports(&[Port::f32("o", HEADS)]),
    kv: KvUse {
        stores: true,
        attends: true,
        layers: &[KvLayerKind::DeltaState],
        row: "kda_heads × kda_width × kda_width elements of f32 per sequence, rows by key and columns by value",
    },
    kernels: RequiredKernels::Own(OpKind::DeltaRule),
    by_heads: true,
    shape_rule: ShapeRule::Attention,
    // The state is read and written once per sequence, for any number of rows.
    cost: |at| {
        let width = at.width(0);
        NodeCost {
            cache_bytes: 2.0 * at.sequences * at.kv_row_bytes,
            // Per element of the state: one for the decay, two each for Sᵀk, k uᵀ and Sᵀq.
            flops: 7.0 * at.rows * at.heads * width * width,
            ..NodeCost::default()
        }
    },
    reference: OpReference {
        cache_bytes: "2*sequences*kv_row_bytes",
        flops: "7*rows*kda_heads*kda_width*kda_width",
        ..OpReference::new(
            "The delta rule with a decay for each row of the state. Row after row of a sequence, the state fades, what it predicts for the \
                 key is compared with the value, and a part β of the difference is stored under the key. The state of a sequence is read and \
                 replaced.",
            "S ← diag(e^g) S;  u = β · (v − Sᵀk);  S ← S + k uᵀ;  o = Sᵀq,  β = σ(beta_raw)",
            KDA,
        )
    },
    ..Operation::DEFAULT
};
