//! The table of all kernels, and the features of this CPU.

use crate::attention_table::{self, AttentionRow};
#[cfg(target_arch = "x86_64")]
use crate::isa;
use crate::kernel_fn::KernelFn;
use crate::matmul;
use latent_types::{ActivationType, CpuFeatures, KernelContract, OpKind, Tier, WeightLayout};
use std::sync::OnceLock;

/// Every kernel with its contract, for all tiers. Kernels that need more than their tier (f16 or bf16 arithmetic) are listed only where the CPU has it.
pub fn table() -> &'static [(KernelContract, KernelFn)] {
    static TABLE: OnceLock<Vec<(KernelContract, KernelFn)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = matmul::kernels();
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

/// The features of this CPU, detected once.
#[cfg(target_arch = "x86_64")]
pub fn features() -> CpuFeatures {
    static FOUND: OnceLock<CpuFeatures> = OnceLock::new();
    let found = *FOUND.get_or_init(|| CpuFeatures {
        avx2: isa::has_avx2(),
        avx_vnni: is_x86_feature_detected!("avxvnni"),
        avx512: isa::has_avx512(),
        avx512_bf16: is_x86_feature_detected!("avx512bf16"),
        avx512_fp16: is_x86_feature_detected!("avx512fp16"),
        amx: crate::bf16::found(),
    });
    CpuFeatures { amx: found.amx || crate::bf16::assumed(), ..found }
}

/// The features of this CPU: on this architecture only portable code.
#[cfg(not(target_arch = "x86_64"))]
pub fn features() -> CpuFeatures {
    CpuFeatures::default()
}
