//! The attention kernels' rows of the kernel table.

use crate::attention::tiers;
use crate::kernel_fn::KernelFn;
use latent_types::{ActivationType, CacheType, OpKind, Tier};

/// A row of the table. The kernel's name consists of the tier, `form` and the operation.
pub(crate) struct AttentionRow {
    pub op: OpKind,
    pub tier: Tier,
    pub form: String,
    /// Arithmetic type.
    pub activation: ActivationType,
    /// The cache type that it reads; `None` for any.
    pub cache: Option<CacheType>,
    /// Minimum number of tokens of a step.
    pub min_rows: usize,
    pub kernel: KernelFn,
}

/// Every attention kernel. Kernels that need features beyond their tier (f16 or bf16 arithmetic)
/// are included only if the CPU has them.
pub(crate) fn rows() -> Vec<AttentionRow> {
    let mut rows = generic_rows();
    #[cfg(target_arch = "x86_64")]
    {
        rows.extend(f16_rows());
        rows.extend(bf16_rows());
        rows.extend(amx_rows());
    }
    rows
}

/// A row in f32, for any cache and any number of tokens.
fn plain(op: OpKind, tier: Tier, kernel: KernelFn) -> AttentionRow {
    let (form, activation) = (String::new(), ActivationType::F32);
    AttentionRow { op, tier, form, activation, cache: None, min_rows: 1, kernel }
}

/// Kernels that are compiled for every ISA.
fn generic_rows() -> Vec<AttentionRow> {
    let mut rows = Vec::new();
    for (tier, kernel) in tiers::decode_f32() {
        rows.push(plain(OpKind::AttendLatent, tier, KernelFn::AttendLatent(kernel)));
    }
    for (tier, kernel) in tiers::decode_separate() {
        rows.push(plain(OpKind::AttendSeparate, tier, KernelFn::AttendSeparate(kernel)));
    }
    for (tier, kernel) in tiers::prefill_f32() {
        rows.push(plain(OpKind::AttendExpanded, tier, KernelFn::AttendExpanded(kernel)));
    }
    for (tier, kernel) in tiers::expand_keys_f32() {
        rows.push(plain(OpKind::ExpandKeys, tier, KernelFn::ExpandKeys(kernel)));
    }
    for (tier, kernel) in tiers::decode_int8() {
        rows.push(AttentionRow {
            form: "_int8".into(),
            activation: ActivationType::A8,
            cache: Some(CacheType::Int8),
            ..plain(OpKind::AttendLatent, tier, KernelFn::AttendLatent(kernel))
        });
    }
    rows
}

/// Kernels of AVX512-FP16.
#[cfg(target_arch = "x86_64")]
fn f16_rows() -> Vec<AttentionRow> {
    if crate::isa::Avx512Fp16::detect().is_none() {
        return Vec::new();
    }
    let (prefill, expand) = tiers::prefill_f16();
    let mut rows = Vec::new();
    for (cache, form, decode) in [
        (CacheType::F16, "_fp16", tiers::decode_f16()),
        (CacheType::Int8, "_fp16_int8", tiers::decode_int8_f16()),
    ] {
        for (op, kernel) in [
            (OpKind::AttendLatent, KernelFn::AttendLatent(decode)),
            (OpKind::AttendExpanded, KernelFn::PrefillAttnF16(prefill)),
            (OpKind::ExpandKeys, KernelFn::ExpandKeysF16(expand)),
        ] {
            let (form, activation, cache) = (form.into(), ActivationType::F16, Some(cache));
            rows.push(AttentionRow { form, activation, cache, ..plain(op, Tier::Avx512, kernel) });
        }
    }
    rows
}

/// Kernels of AVX512-BF16. An f32 cache has none: it is selected for more precision than bf16 has.
#[cfg(target_arch = "x86_64")]
fn bf16_rows() -> Vec<AttentionRow> {
    use crate::bf16::dot::Avx512Bf16Dot;
    if !crate::bf16::has_bf16_vectors() {
        return Vec::new();
    }
    let (prefill, expand) = tiers::prefill_bf16::<Avx512Bf16Dot>();
    let mut rows = Vec::new();
    for cache in CacheType::ALL.into_iter().filter(|cache| *cache != CacheType::F32) {
        let form = if cache == CacheType::F16 { "_bf16".into() } else { format!("_bf16_{cache}") };
        for (op, kernel) in [
            (OpKind::AttendExpanded, KernelFn::PrefillAttnBf16(prefill)),
            (OpKind::ExpandKeys, KernelFn::ExpandKeysBf16(expand)),
            (OpKind::AttendLatent, KernelFn::AttendLatent(tiers::decode_bf16::<Avx512Bf16Dot>())),
        ] {
            let (form, activation, cache) = (form.clone(), ActivationType::Bf16, Some(cache));
            rows.push(AttentionRow { form, activation, cache, ..plain(op, Tier::Avx512, kernel) });
        }
    }
    rows
}

/// Kernels of AMX.
#[cfg(target_arch = "x86_64")]
fn amx_rows() -> Vec<AttentionRow> {
    use crate::bf16::{MIN_ROWS, dot::AmxTiles};
    let (prefill, expand) = tiers::prefill_bf16::<AmxTiles>();
    // Decode reads a bf16 cache only. bf16 has three mantissa bits fewer than f16, and every CPU
    // with AMX has AVX512-FP16 for an f16 cache.
    let decode = KernelFn::AttendLatent(tiers::decode_bf16::<AmxTiles>());
    let rows = [
        (OpKind::AttendExpanded, None, MIN_ROWS, KernelFn::PrefillAttnBf16(prefill)),
        (OpKind::ExpandKeys, None, MIN_ROWS, KernelFn::ExpandKeysBf16(expand)),
        (OpKind::AttendLatent, Some(CacheType::Bf16), 1, decode),
    ];
    let row = |(op, cache, min_rows, kernel)| AttentionRow {
        form: "_bf16".into(),
        activation: ActivationType::Bf16,
        cache,
        min_rows,
        ..plain(op, Tier::Amx, kernel)
    };
    rows.map(row).into()
}
