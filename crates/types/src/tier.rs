//! ISA tiers and the CPU features that they require.

use std::fmt;
use std::str::FromStr;

/// A set of instructions for which kernels are written. A higher tier includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Plain Rust for any CPU, and the reference for the other tiers.
    Portable,
    /// AVX2, FMA and F16C (x86-64 CPUs since 2013).
    Avx2,
    /// AVX-512 F, BW, VL, DQ, VBMI and VNNI (Ice Lake, Zen 4). CPUs with AVX-512 but without VNNI
    /// count as AVX2.
    Avx512,
    /// AVX-512 with BF16, and AMX tiles for int8 and bf16 (Sapphire Rapids).
    Amx,
}

impl Tier {
    /// All tiers, lowest first.
    pub const ALL: [Tier; 4] = [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Amx];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Amx => "amx",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `write_str`, which would ignore the width of table columns.
        f.pad(self.name())
    }
}

/// An unknown tier name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTier(pub String);

impl fmt::Display for UnknownTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction-set tier {:?}: expected portable, avx2, avx512 or amx", self.0)
    }
}

impl std::error::Error for UnknownTier {}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(word: &str) -> Result<Self, UnknownTier> {
        Tier::ALL
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(word))
            .ok_or_else(|| UnknownTier(word.to_owned()))
    }
}

/// Features of a CPU. `latent-kernels` detects them, and `latent-graph` selects kernels by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures {
    /// AVX2, FMA and F16C together.
    pub avx2: bool,
    /// The VNNI dot products in their 256-bit VEX form.
    // Not implied by another feature: Alder Lake has them without AVX-512.
    pub avx_vnni: bool,
    /// AVX-512 F, BW, VL, DQ, VBMI and VNNI together.
    pub avx512: bool,
    /// AVX-512 BF16 dot products.
    // Ice Lake has `avx512` without them.
    pub avx512_bf16: bool,
    /// AVX-512 arithmetic on f16.
    // Zen 4 has BF16 without it.
    pub avx512_fp16: bool,
    /// AMX tiles, int8 and bf16, with the operating system's permission.
    pub amx: bool,
}

impl CpuFeatures {
    /// The highest tier that these features support.
    pub fn tier(self) -> Tier {
        // Each tier requires the features of the lower ones, because a virtual machine may hide
        // features that the CPU has.
        match self {
            CpuFeatures { amx: true, avx512: true, avx512_bf16: true, avx2: true, .. } => Tier::Amx,
            CpuFeatures { avx512: true, avx2: true, .. } => Tier::Avx512,
            CpuFeatures { avx2: true, .. } => Tier::Avx2,
            _ => Tier::Portable,
        }
    }

    /// The features without those above `tier`, for `LATENT_ISA` and `--isa`.
    pub fn limited_to(self, tier: Tier) -> Self {
        CpuFeatures {
            avx2: self.avx2 && tier >= Tier::Avx2,
            avx_vnni: self.avx_vnni && tier >= Tier::Avx2,
            avx512: self.avx512 && tier >= Tier::Avx512,
            avx512_bf16: self.avx512_bf16 && tier >= Tier::Avx512,
            avx512_fp16: self.avx512_fp16 && tier >= Tier::Avx512,
            amx: self.amx && tier >= Tier::Amx,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_tiers_agree() {
        for tier in Tier::ALL {
            assert_eq!(tier.name().to_uppercase().parse(), Ok(tier));
        }
        assert!("sse9".parse::<Tier>().unwrap_err().to_string().contains("sse9"));
    }

    #[test]
    fn limiting_features_limits_the_tier() {
        let all = CpuFeatures {
            avx2: true,
            avx_vnni: true,
            avx512: true,
            avx512_bf16: true,
            avx512_fp16: true,
            amx: true,
        };
        for tier in Tier::ALL {
            assert_eq!(all.limited_to(tier).tier(), tier);
        }
        let without_bf16 = CpuFeatures { avx512_bf16: false, ..all };
        assert_eq!(without_bf16.tier(), Tier::Avx512);
    }
}
