//! CPU feature detection. The lists in `features_of` are the single source of the features that
//! each ISA's kernels are compiled for and detected by.

#[cfg(target_arch = "x86_64")]
mod amx;

#[cfg(target_arch = "x86_64")]
pub use amx::assume_amx;

use latent_types::{CpuFeatures, Tier};
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Environment variable with the highest tier whose instructions count as present. It applies to
/// the whole process, so the test suite runs as it would on a CPU of that tier. Invalid values have
/// no effect here; the program rejects them at start.
#[cfg(target_arch = "x86_64")]
const ISA: &str = "LATENT_ISA";

/// If this variable is set, AVX-VNNI counts as absent: for tuning the kernels of older CPUs on a
/// newer one.
#[cfg(target_arch = "x86_64")]
const NO_AVX_VNNI: &str = "LATENT_NO_AVX_VNNI";

/// Calls the macro whose path is in brackets with the features of an ISA, followed by the macro's
/// own arguments.
// Lists repeat the features of lower ISAs, since a function compiled for an ISA inlines code of the
// lower ones.
#[cfg(target_arch = "x86_64")]
macro_rules! features_of {
    (Avx2, [$($then:tt)*] $($args:tt)*) => {
        $($then)*!(["avx2" "fma" "f16c"] $($args)*);
    };
    (Avx2Vnni, [$($then:tt)*] $($args:tt)*) => {
        $($then)*!(["avx2" "fma" "f16c" "avxvnni"] $($args)*);
    };
    (Avx512, [$($then:tt)*] $($args:tt)*) => {
        $($then)*!(
            ["avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vbmi" "avx512vnni" "avx2" "fma" "f16c"] $($args)*
        );
    };
    (Avx512Bf16, [$($then:tt)*] $($args:tt)*) => {
        $($then)*!(
            ["avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vbmi" "avx512vnni" "avx512bf16" "avx2" "fma" "f16c"]
            $($args)*
        );
    };
    (Avx512Fp16, [$($then:tt)*] $($args:tt)*) => {
        $($then)*!(
            ["avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vbmi" "avx512vnni" "avx512fp16" "avx2" "fma" "f16c"]
            $($args)*
        );
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use features_of;

#[cfg(target_arch = "x86_64")]
macro_rules! detected {
    ([$($feature:tt)*] $name:ident) => {
        fn $name() -> bool {
            $(std::arch::is_x86_feature_detected!($feature))&&*
        }
    };
}

#[cfg(target_arch = "x86_64")]
features_of!(Avx2, [detected] has_avx2);
#[cfg(target_arch = "x86_64")]
features_of!(Avx512, [detected] has_avx512);

/// The features of this CPU, detected once.
#[cfg(target_arch = "x86_64")]
pub fn features() -> CpuFeatures {
    let found = native_features();
    // Outside the `OnceLock`: a test may call `assume_amx` after the first detection.
    CpuFeatures { amx: found.amx || amx::assumed(), ..found }
}

#[cfg(target_arch = "x86_64")]
fn native_features() -> CpuFeatures {
    static FOUND: OnceLock<CpuFeatures> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let limit = std::env::var(ISA).ok();
        let found = limited(detected(), limit.as_deref());
        CpuFeatures { avx_vnni: found.avx_vnni && std::env::var_os(NO_AVX_VNNI).is_none(), ..found }
    })
}

#[cfg(target_arch = "x86_64")]
fn detected() -> CpuFeatures {
    CpuFeatures {
        avx2: has_avx2(),
        avx_vnni: is_x86_feature_detected!("avxvnni"),
        avx512: has_avx512(),
        avx512_bf16: is_x86_feature_detected!("avx512bf16"),
        avx512_fp16: is_x86_feature_detected!("avx512fp16"),
        amx: amx::found(),
    }
}

/// `found` without the features above the tier that `limit` names.
#[cfg(target_arch = "x86_64")]
fn limited(found: CpuFeatures, limit: Option<&str>) -> CpuFeatures {
    match limit.and_then(|word| word.parse().ok()) {
        Some(tier) => found.limited_to(tier),
        None => found,
    }
}

/// The features of this CPU: on this architecture only portable code.
#[cfg(not(target_arch = "x86_64"))]
pub fn features() -> CpuFeatures {
    CpuFeatures::default()
}

#[cfg(not(target_arch = "x86_64"))]
fn native_features() -> CpuFeatures {
    features()
}

/// The best tier of this CPU, not counting emulated instructions (`assume_amx`). The default
/// wherever the user selects no tier.
pub fn native_tier() -> Tier {
    native_features().tier()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_hides_the_tiers_above_it() {
        let all = CpuFeatures {
            avx2: true,
            avx_vnni: true,
            avx512: true,
            avx512_bf16: true,
            avx512_fp16: true,
            amx: true,
        };
        for tier in Tier::ALL {
            assert_eq!(limited(all, Some(tier.name())).tier(), tier);
        }
        for limit in [None, Some("auto"), Some("sse9"), Some("")] {
            assert_eq!(limited(all, limit), all);
        }
    }
}
