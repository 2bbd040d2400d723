//! `short_conv`: short causal convolutions of queries, keys and values.

use super::shared::KDA;
use super::{
    CostInput, KvLayerKind, KvUse, NodeCost, NodeWeights, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// A causal convolution over time of each channel, then SiLU. Its state is the inputs that the next row still sees.
pub(super) struct ShortConv;

const CHANNELS: &str = "rows × kda_heads*kda_width";
const TAPS: &str = "kda_heads*kda_width × taps";
const HEADS: &str = "rows × kda_heads × kda_width";

impl Operation for ShortConv {
    fn name(&self) -> &'static str {
        "short_conv"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("q_raw", CHANNELS), Port::f32("k_raw", CHANNELS), Port::f32("v_raw", CHANNELS)] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("q", HEADS), Port::f32("k", HEADS), Port::f32("v", HEADS)] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const {
            &[
                WeightSlot::new("q_conv", TAPS),
                WeightSlot::new("k_conv", TAPS),
                WeightSlot::new("v_conv", TAPS),
            ]
        }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        if weights.count == 3 { Ok(()) } else { Err("three, of q, k and v") }
    }

    fn kv(&self) -> KvUse {
        let row = "past_taps inputs of all channels of q, k and v";
        KvUse { stores: true, attends: true, layers: &[KvLayerKind::ConvInputs], row }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::ShortConv)
    }

    fn by_heads(&self) -> bool {
        true
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            cache_bytes: 2.0 * at.sequences * at.kv_row_bytes,
            flops: at.matmul_flops(at.rows),
            link_bytes: 0.0,
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            cache_bytes: "2*sequences*kv_row_bytes",
            flops: "2*rows*weights",
            ..OpReference::new(
                "A causal convolution over time of every channel of queries, keys and values, then SiLU. Before the first token inputs are 0. \
                 The state of a sequence is the last inputs, which it reads and replaces.",
                "y[t] = silu(Σⱼ w[j] · x[t − taps + 1 + j])",
                KDA,
            )
        }
    }
}
