//! `attend_latent`: attention in latent space.

use super::shared::{ABSORBED, LATENT_MIX, latent_attention_cost};
use super::{
    Cost, CostInput, Kernels, KvLayerKind, KvUse, MadeBy, OpReference, Operation, Outputs, Port, ShapeRule,
};
use latent_types::OpKind;

/// Online-softmax attention over the cached latents: MQA with one key/value row per token.
pub(super) struct AttendLatent;

impl Operation for AttendLatent {
    fn name(&self) -> &'static str {
        "attend_latent"
    }

    fn made_by(&self) -> MadeBy {
        MadeBy::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("q_latent", "rows × heads × (kv_lora + rope)")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[LATENT_MIX] })
    }

    fn kv(&self) -> KvUse {
        KvUse {
            stores: false,
            attends: true,
            layers: &[KvLayerKind::Latent],
            row: "kv_lora + rope elements per row",
        }
    }

    fn kernels(&self) -> Kernels {
        Kernels::Own(OpKind::AttendLatent)
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> Cost {
        latent_attention_cost(at)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            cache_bytes: "kv_len*kv_row_bytes",
            flops: "2*pairs*heads*(kv_lora+rope+kv_lora)",
            ..OpReference::new(
                "Attention of all heads to one row per token, whose first kv_lora elements are its value too. A cached row is read once for \
             all heads.",
                "õ = Σⱼ softmaxⱼ(s · q̃ · [cⱼ | k_ropeⱼ]) · cⱼ",
                ABSORBED,
            )
        }
    }
}
