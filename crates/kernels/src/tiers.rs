//! Row-wise functions compiled for every ISA and dispatched at run time.

/// Defines a function whose body is compiled for the baseline, AVX2 and AVX-512. A call runs the
/// best of them that the CPU has and [`limit_tier`](crate::limit_tier) allows.
///
/// The compiler never contracts a multiplication and an addition into an FMA, so every ISA gives
/// the same bits.
macro_rules! tiers {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(unsafe_code, reason = "the token of an ISA proves its instructions")]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            // Inlined into each of the functions below, so that it is compiled with the features of
            // its caller.
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            $crate::isa::isa_fn! { Avx2;
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
            }

            #[cfg(target_arch = "x86_64")]
            $crate::isa::isa_fn! { Avx512;
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
            }

            #[cfg(target_arch = "x86_64")]
            match $crate::tiers::active_isa() {
                // SAFETY: the token proves the features that the function is compiled for.
                $crate::tiers::RowwiseIsa::Avx512(_) => return unsafe { avx512($($arg),*) },
                // SAFETY: the token proves the features that the function is compiled for.
                $crate::tiers::RowwiseIsa::Avx2(_) => return unsafe { avx2($($arg),*) },
                $crate::tiers::RowwiseIsa::Portable => {}
            }
            body($($arg),*)
        }
    };
}
pub(crate) use tiers;

#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512};
use latent_types::Tier;
use std::sync::atomic::{AtomicU8, Ordering};

/// Index into [`Tier::ALL`] of the limit.
// Relaxed accesses suffice: the limit protects no other memory, and every tier is correct.
static LIMIT: AtomicU8 = AtomicU8::new(Tier::ALL.len() as u8 - 1);

/// Limits the ISA of operations that no plan selects: norms, activation functions, RoPE,
/// conversions and indexers. Applies to the whole process.
///
/// Results do not change, since every ISA gives the same bits. The only exception: the portable
/// tier rounds the scores of an indexer differently, because it has no FMA.
pub fn limit_tier(tier: Tier) {
    let index = Tier::ALL.iter().position(|t| *t == tier).unwrap_or(0);
    LIMIT.store(index as u8, Ordering::Relaxed);
}

/// The limit set by [`limit_tier`].
pub fn tier_limit() -> Tier {
    Tier::ALL[usize::from(LIMIT.load(Ordering::Relaxed))]
}

/// The ISA that row-wise operations use, proved by its token.
#[derive(Clone, Copy)]
pub(crate) enum RowwiseIsa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// Other architectures have portable kernels only.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn best_isa(_limit: Tier) -> RowwiseIsa {
    RowwiseIsa::Portable
}

/// The best ISA of this CPU that [`limit_tier`] allows.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn active_isa() -> RowwiseIsa {
    best_isa(tier_limit())
}

/// The best ISA of this CPU up to `limit`.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn best_isa(limit: Tier) -> RowwiseIsa {
    let has = crate::features::features();
    if limit >= Tier::Avx512
        && let Some(isa) = Avx512::among(has)
    {
        return RowwiseIsa::Avx512(isa);
    }
    match <Avx2>::among(has) {
        Some(isa) if limit >= Tier::Avx2 => RowwiseIsa::Avx2(isa),
        _ => RowwiseIsa::Portable,
    }
}
