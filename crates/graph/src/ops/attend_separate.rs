//! `attend_split`: attention in latent space with separate scores.

use super::shared::{LATENT_MIX, latent_attention_cost};
use super::{
    Cost, CostInput, Kernels, KvLayerKind, KvUse, MadeBy, OpReference, Operation, Outputs, Port, ShapeRule,
};
use latent_types::OpKind;

/// The same as `attend_latent`, with content and rope scores computed separately.
pub(super) struct AttendSeparate;

impl Operation for AttendSeparate {
    fn name(&self) -> &'static str {
        "attend_split"
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
        Kernels::Own(OpKind::AttendSeparate)
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
                "The same as `attend_latent`, with the scores of content and rope computed separately and added.",
                "õ = Σⱼ softmaxⱼ(s · (q̃_c · cⱼ + q_rope · k_ropeⱼ)) · cⱼ",
                "DeepSeek-V3's published inference code",
            )
        }
    }
}
