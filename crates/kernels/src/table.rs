//! The table of all kernels.

use crate::attention_table::{self, AttentionRow};
use crate::kernel_fn::KernelFn;
use crate::matmul::{self, MatmulFn};
use latent_types::{ActivationType, KernelContract, OpKind, Tier, WeightLayout};
use std::sync::OnceLock;

/// Every kernel with its contract, for all tiers. Kernels that need more than their tier (f16 or bf16 arithmetic) are listed only where the CPU has it.
pub fn table() -> &'static [(KernelContract, KernelFn)] {
    static TABLE: OnceLock<Vec<(KernelContract, KernelFn)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let matmul = |(contract, kernel): (KernelContract, MatmulFn)| match contract.op {
            OpKind::LinearT => (contract, KernelFn::MatmulT(kernel)),
            _ => (contract, KernelFn::Matmul(kernel)),
        };
        let mut table: Vec<_> = matmul::kernels().into_iter().map(matmul).collect();
        let plain = |op, name, kernel| {
            let contract = KernelContract {
                op,
                weight: None,
                layout: WeightLayout::Rows,
                activation: ActivationType::F32,
                cache: None,
                min_rows: 1,
                tier: Tier::Portable,
                name,
            };
            (contract, kernel)
        };
        for row in attention_table::rows() {
            let AttentionRow { op, tier, form, activation, cache, min_rows, kernel } = row;
            let name = format!("{tier}{form}_{}", op.name()).leak();
            let contract = KernelContract { activation, cache, min_rows, tier, ..plain(op, name, kernel).0 };
            table.push((contract, kernel));
        }
        for (op, name) in [
            (OpKind::Embed, "portable_embed"),
            (OpKind::RmsNorm, "portable_rms_norm"),
            (OpKind::Rope, "portable_rope"),
            (OpKind::LatentStore, "portable_latent_store"),
            (OpKind::Route, "portable_route"),
            (OpKind::SiluMul, "portable_silu_mul"),
            (OpKind::Relu2, "portable_relu2"),
            (OpKind::Add, "portable_add"),
            (OpKind::Scale, "portable_scale"),
        ] {
            table.push(plain(op, name, KernelFn::Plain));
        }
        table
    })
}
