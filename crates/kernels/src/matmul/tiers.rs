//! The bodies compiled for each tier, and the rows of the table that they fill.
#![allow(
    unsafe_code,
    reason = "a function compiled for an instruction set may only run where the processor has it"
)]

use super::compiled::compiled;
use super::{MatmulFn, body, float, quantized};
use crate::KernelFn;
#[cfg(target_arch = "x86_64")]
use crate::bf16::MIN_ROWS;
use latent_types::{ActivationType, KernelContract, OpKind, TensorType, Tier, WeightLayout};

/// Products with decoded rows.
const DECODED: &[(Tier, MatmulFn)] = &[
    (Tier::Portable, compiled!(body::decoded)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx2, compiled!(Avx2: body::decoded)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx512, compiled!(Avx512: body::decoded)),
];

/// The same with the weight read across.
const TRANSPOSED: &[(Tier, MatmulFn)] = &[
    (Tier::Portable, compiled!(body::transposed)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx2, compiled!(Avx2: body::transposed)),
    #[cfg(target_arch = "x86_64")]
    (Tier::Avx512, compiled!(Avx512: body::transposed)),
];

/// Formats whose rows a tier above portable reads well; the others go through the portable strip, and the start-up line says so.
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

/// No product here is for many rows alone.
#[cfg(not(target_arch = "x86_64"))]
const MIN_ROWS: usize = 1;

/// Every product of the table.
pub(crate) fn kernels() -> Vec<(KernelContract, KernelFn)> {
    let mut table = Vec::new();
    let mut add = |op, weight: Option<TensorType>, layout, activation: ActivationType, tier: Tier, kernel| {
        let least = if tier == Tier::Amx { MIN_ROWS } else { 1 };
        let format = weight.map_or_else(|| "strip".to_owned(), |ty| ty.name().to_lowercase());
        let tiles = if layout == WeightLayout::Tiles { "_tiles" } else { "" };
        let across = if op == OpKind::LinearT { "_across" } else { "" };
        let name = format!("{tier}_{format}{tiles}_{}{across}", activation.name()).leak();
        let contract = KernelContract { op, weight, layout, activation, cache: None, least, tier, name };
        table.push((contract, kernel));
    };
    let rows = WeightLayout::Rows;
    for &(tier, kernel) in DECODED {
        for ty in FAST {
            add(OpKind::Linear, Some(ty), rows, ActivationType::F32, tier, KernelFn::Matmul(kernel));
        }
    }
    for &(tier, kernel) in TRANSPOSED {
        for ty in FAST {
            add(OpKind::LinearT, Some(ty), rows, ActivationType::F32, tier, KernelFn::MatmulT(kernel));
        }
        for ty in latent_quant::tiles::FORMATS.into_iter().filter(|ty| !float::has(*ty)) {
            add(
                OpKind::LinearT,
                Some(ty),
                WeightLayout::Tiles,
                ActivationType::F32,
                tier,
                KernelFn::MatmulT(kernel),
            );
        }
    }
    for (ty, tier, kernel) in quantized::kernels() {
        let activation = if tier == Tier::Amx { ActivationType::Bf16 } else { ActivationType::A8 };
        add(OpKind::Linear, Some(ty), WeightLayout::Tiles, activation, tier, KernelFn::Matmul(kernel));
    }
    for (op, ty, tier, kernel) in float::kernels() {
        let kernel = if op == OpKind::LinearT { KernelFn::MatmulT(kernel) } else { KernelFn::Matmul(kernel) };
        add(op, Some(ty), WeightLayout::Tiles, ActivationType::F32, tier, kernel);
    }
    add(OpKind::Linear, None, rows, ActivationType::F32, Tier::Portable, KernelFn::Matmul(DECODED[0].1));
    add(OpKind::LinearT, None, rows, ActivationType::F32, Tier::Portable, KernelFn::MatmulT(TRANSPOSED[0].1));
    table
}
