//! Instruction sets: functions compiled for an ISA, and zero-sized tokens that prove that the CPU
//! has it.
//!
//! [`isa_fn`] compiles a function for an ISA. A token such as [`Avx2`] is created only after
//! detection of that ISA, so a caller that holds one may call functions compiled for it.
#![cfg(target_arch = "x86_64")]

use crate::features::features;
use latent_types::CpuFeatures;

/// A function compiled for an ISA: `isa_fn! { Avx2; fn name(..) { .. } }`, with its attributes
/// after the semicolon.
macro_rules! isa_fn {
    ($isa:ident; $($function:tt)*) => {
        $crate::features::features_of!($isa, [$crate::isa::enable] $($function)*);
    };
}
pub(crate) use isa_fn;

macro_rules! enable {
    ([$($feature:tt)*] $($function:tt)*) => {
        #[target_feature($(enable = $feature),*)]
        $($function)*
    };
}
pub(crate) use enable;

/// Proof of AVX2, FMA and F16C; with `VNNI`, of AVX-VNNI too.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool = false>(());

/// Proof of AVX2 with AVX-VNNI.
pub(crate) type Avx2Vnni = Avx2<true>;

// VBMI and VNNI are required, which excludes Skylake-X: kernels permute bytes (`vpermb`), and every
// integer dot product is `vpdpbusd`.
/// Proof of AVX-512 with BW, VL, DQ, VBMI and VNNI, and of the features of [`Avx2`].
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Proof of [`Avx512`] and of dot products of bf16 pairs.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16(());

/// Proof of [`Avx512`] and of f16 arithmetic.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Fp16(());

macro_rules! token {
    ($isa:ty, $proof:expr, |$has:ident| $condition:expr) => {
        impl $isa {
            /// The token, if the CPU has the ISA.
            pub(crate) fn detect() -> Option<$isa> {
                Self::among(features())
            }

            /// The token, if `has` (from [`features`]) includes the ISA. Saves a second detection
            /// to callers that try several ISAs.
            pub(crate) fn among($has: CpuFeatures) -> Option<$isa> {
                $condition.then_some($proof)
            }

            /// The token.
            ///
            /// # Panics
            /// When the CPU lacks the ISA.
            #[track_caller]
            pub(crate) fn expect() -> $isa {
                let Some(isa) = Self::detect() else {
                    panic!("a kernel on a machine without its instructions")
                };
                isa
            }
        }
    };
}
token!(Avx2, Avx2(()), |has| has.avx2);
token!(Avx2Vnni, Avx2(()), |has| (has.avx2 && has.avx_vnni));
token!(Avx512, Avx512(()), |has| has.avx512);
token!(Avx512Bf16, Avx512Bf16(()), |has| (has.avx512 && has.avx512_bf16));
token!(Avx512Fp16, Avx512Fp16(()), |has| (has.avx512 && has.avx512_fp16));
