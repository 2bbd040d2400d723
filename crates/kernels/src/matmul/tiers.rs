//! All matmul kernels with their contracts.
#![allow(unsafe_code, reason = "functions compiled for an ISA run only where its token was made")]

use super::args::MatmulFn;
use super::compiled::compiled;
use super::{dequantized, float, quantized};
use crate::simd::portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use latent_types::{ActivationType, KernelContract, OpKind, TensorType, Tier, WeightLayout};

/// y = x · Wᵀ with dequantized rows.
pub(super) const DECODED: &[(Tier, MatmulFn)] = &[
    (Tier::Portable, compiled!(dequantized::decoded::<portable::PortableSimd>)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx2, compiled!(Avx2: dequantized::decoded::<avx2::Avx2<false>>)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx512, compiled!(Avx512: dequantized::decoded::<avx512::Avx512>)),
];

/// y = x · W with dequantized rows.
const TRANSPOSED: &[(Tier, MatmulFn)] = &[
    (Tier::Portable, compiled!(dequantized::transposed)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx2, compiled!(Avx2: dequantized::transposed)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx512, compiled!(Avx512: dequantized::transposed)),
];

/// Formats whose dequantization is fast on every ISA. Others use the portable kernel for any
/// format, which a message at start-up reports.
const FAST: [TensorType; 14] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F8_E4M3,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q2_K,
    TensorType::Q3_K,
];

pub(crate) fn kernels() -> Vec<(KernelContract, MatmulFn)> {
    let mut table = Vec::new();
    let mut add = |op, weight: Option<TensorType>, layout, activation: ActivationType, tier: Tier, kernel| {
        let min_rows = min_rows(tier);
        let format = weight.map_or_else(|| "dequantized".to_owned(), |ty| ty.name().to_lowercase());
        let tiles = if layout == WeightLayout::Tiles { "_tiles" } else { "" };
        let transposed = if op == OpKind::LinearT { "_transposed" } else { "" };
        let name = format!("{tier}_{format}{tiles}_{}{transposed}", activation.name()).leak();
        let contract = KernelContract { op, weight, layout, activation, cache: None, min_rows, tier, name };
        table.push((contract, kernel));
    };
    let rows = WeightLayout::Rows;
    for &(tier, kernel) in DECODED {
        for ty in FAST {
            add(OpKind::Linear, Some(ty), rows, ActivationType::F32, tier, kernel);
        }
    }
    for &(tier, kernel) in TRANSPOSED {
        for ty in FAST {
            add(OpKind::LinearT, Some(ty), rows, ActivationType::F32, tier, kernel);
        }
        // Float formats in tiles have transposed kernels of their own.
        for ty in latent_quant::tiles::FORMATS.into_iter().filter(|ty| !float::has(*ty)) {
            add(OpKind::LinearT, Some(ty), WeightLayout::Tiles, ActivationType::F32, tier, kernel);
        }
    }
    for (ty, tier, kernel) in quantized::kernels() {
        add(OpKind::Linear, Some(ty), WeightLayout::Tiles, ActivationType::A8, tier, kernel);
    }
    #[cfg(target_arch = "x86_64")]
    for (ty, kernel) in super::amx::kernels() {
        add(OpKind::Linear, Some(ty), WeightLayout::Tiles, ActivationType::Bf16, Tier::Amx, kernel);
    }
    for (op, ty, tier, kernel) in float::kernels() {
        add(op, Some(ty), WeightLayout::Tiles, ActivationType::F32, tier, kernel);
    }
    // The fallback for every other format, without a weight type in its contract.
    add(OpKind::Linear, None, rows, ActivationType::F32, Tier::Portable, DECODED[0].1);
    add(OpKind::LinearT, None, rows, ActivationType::F32, Tier::Portable, TRANSPOSED[0].1);
    table
}

/// Minimum batch size of a tier's kernels.
fn min_rows(tier: Tier) -> usize {
    #[cfg(target_arch = "x86_64")]
    if tier == Tier::Amx {
        return crate::bf16::MIN_ROWS;
    }
    let _ = tier;
    1
}
