//! The table of all kernels, and the features of this CPU.

use crate::attention::{self, AttendExpandedFn, AttendFn, ExpandKeysFn};
#[cfg(target_arch = "x86_64")]
use crate::isa;
use crate::matmul::{self, MatmulFn};
use latent_types::{ActivationType, CacheType, CpuFeatures, KernelContract, OpKind, Tier, WeightLayout};
use std::sync::OnceLock;

/// A kernel's function, by signature.
#[derive(Clone, Copy)]
pub enum KernelFn {
    /// y = x · Wᵀ.
    Matmul(MatmulFn),
    /// y = x · W: the weight is stored transposed.
    MatmulT(MatmulFn),
    /// MLA decode attention in latent space.
    AttendLatent(AttendFn),
    /// MLA decode attention with separate scores.
    AttendSeparate(AttendFn),
    /// MLA prefill attention over expanded f32 keys and values.
    AttendExpanded(AttendExpandedFn),
    /// Expansion of latents to f32 keys.
    ExpandKeys(ExpandKeysFn),
    /// MLA prefill attention over expanded f16 keys and values.
    PrefillAttnF16(AttendExpandedFn<half::f16>),
    /// Expansion of latents to f16 keys.
    ExpandKeysF16(ExpandKeysFn<half::f16>),
    /// MLA prefill attention over expanded bf16 keys and values.
    PrefillAttnBf16(AttendExpandedFn<half::bf16>),
    /// Expansion of latents to bf16 keys.
    ExpandKeysBf16(ExpandKeysFn<half::bf16>),
    /// One of this crate's row-wise functions, which backends call by name.
    Plain,
}

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
