//! Compiling one body for every tier.

/// A function whose body is compiled for the baseline, AVX2 and AVX-512, and which takes the best that the processor (and the limit set
/// by [`limit_tier`](crate::limit_tier)) has.
///
/// Multiplication and addition are never fused by the compiler, so that all forms give the same bits.
macro_rules! tiers {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(unsafe_code, reason = "the processor was asked for the instructions")]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            match $crate::tiers::active() {
                // SAFETY: the processor has the features of the tier.
                latent_types::Tier::Avx512 | latent_types::Tier::Amx => return unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                latent_types::Tier::Avx2 => return unsafe { avx2($($arg),*) },
                latent_types::Tier::Portable => {}
            }
            body($($arg),*)
        }
    };
}
pub(crate) use tiers;

use latent_types::Tier;
use std::sync::atomic::{AtomicU8, Ordering};

/// Index into [`Tier::ALL`] of the highest tier that row-wise operations may use.
static LIMIT: AtomicU8 = AtomicU8::new(Tier::ALL.len() as u8 - 1);

/// Keeps row-wise operations (norms, activations, rotations, conversions), which are called directly and not bound by a plan,
/// below a tier. For the whole process; all tiers give the same bits, so that it never changes a result.
pub fn limit_tier(tier: Tier) {
    let index = Tier::ALL.iter().position(|t| *t == tier).unwrap_or(0);
    LIMIT.store(index as u8, Ordering::Relaxed);
}

/// The limit that [`limit_tier`] has set.
pub fn tier_limit() -> Tier {
    Tier::ALL[usize::from(LIMIT.load(Ordering::Relaxed))]
}

/// The tier that row-wise operations use.
#[inline]
pub(crate) fn active() -> Tier {
    tier_limit().min(crate::features().tier())
}
