//! The table of all kernels, and what the processor offers.

use crate::attention::{self, AttendExpandedFn, AttendFn, ExpandKeysFn};
#[cfg(target_arch = "x86_64")]
use crate::isa;
use crate::matmul::{self, MatmulFn};
use latent_types::{ActivationType, CacheType, CpuFeatures, KernelContract, OpKind, Tier, WeightLayout};
use std::sync::OnceLock;

/// A kernel, typed by what it does. Operations without a function here have one form, called directly.
#[derive(Clone, Copy)]
pub enum KernelFn {
    /// A product with weight rows.
    Matmul(MatmulFn),
    /// A product with a weight read across.
    MatmulT(MatmulFn),
    /// Attention in latent space.
    AttendLatent(AttendFn),
    /// The same with scores apart.
    AttendSeparate(AttendFn),
    /// Attention over expanded keys and values.
    AttendExpanded(AttendExpandedFn),
    /// Keys from latents.
    ExpandKeys(ExpandKeysFn),
    /// Attention over expanded keys and values of f16.
    PrefillAttnF16(AttendExpandedFn<half::f16>),
    /// Such keys from latents.
    ExpandKeysF16(ExpandKeysFn<half::f16>),
    /// Attention over expanded keys and values of bf16.
    PrefillAttnBf16(AttendExpandedFn<half::bf16>),
    /// Such keys from latents.
    ExpandKeysBf16(ExpandKeysFn<half::bf16>),
    /// A plain function of this crate.
    Plain,
}

/// Every kernel with its contract, all tiers. Forms that need more than their tier (arithmetic on f16 or bf16) are there only where the
/// processor has it.
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
        let mut attend = |op: OpKind, tier: Tier, form: &str, activation, cache, min_rows, kernel| {
            let name = format!("{tier}{form}_{}", op.name()).leak();
            let contract = KernelContract { activation, cache, min_rows, tier, ..plain(op, name, kernel).0 };
            table.push((contract, kernel));
        };
        for (op, tier, kernel) in attention::kernels() {
            attend(op, tier, "", ActivationType::F32, None, 1, kernel);
        }
        for (tier, kernel) in attention::int8_kernels() {
            let cache = Some(CacheType::Int8);
            attend(OpKind::AttendLatent, tier, "_int8", ActivationType::A8, cache, 1, kernel);
        }
        if features().avx512 && features().avx512_fp16 {
            for (op, cache, kernel) in attention::f16_kernels() {
                let form = if cache == Some(CacheType::Int8) { "_fp16_int8" } else { "_fp16" };
                attend(op, Tier::Avx512, form, ActivationType::F16, cache, 1, kernel);
            }
        }
        #[cfg(target_arch = "x86_64")]
        if crate::bf16::has_bf16_vectors() {
            for (op, cache, kernel) in crate::bf16::vector_attention() {
                let over = if cache == CacheType::F16 { String::new() } else { format!("_{cache}") };
                let form = format!("_bf16{over}");
                attend(op, Tier::Avx512, &form, ActivationType::Bf16, Some(cache), 1, kernel);
            }
        }
        #[cfg(target_arch = "x86_64")]
        for (op, min_rows, cache, kernel) in crate::bf16::amx_attention() {
            attend(op, Tier::Amx, "_bf16", ActivationType::Bf16, cache, min_rows, kernel);
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

/// What the processor offers, found once.
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

/// What the processor offers: portable code only, on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub fn features() -> CpuFeatures {
    CpuFeatures::default()
}
