//! The features of this CPU. The lists in `features_of` are the only place that spells the names of those that kernels are compiled for.

#[cfg(target_arch = "x86_64")]
mod amx;

#[cfg(target_arch = "x86_64")]
pub use amx::assume_amx;

use latent_types::{CpuFeatures, Tier};
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// If this variable is set, AVX-VNNI counts as absent: for tuning the kernels of processors without it elsewhere.
#[cfg(target_arch = "x86_64")]
const NO_AVX_VNNI: &str = "LATENT_NO_AVX_VNNI";

/// Hands the features of an ISA to the macro whose path stands in brackets, followed by its arguments.
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
    CpuFeatures { amx: found.amx || amx::assumed(), ..found }
}

#[cfg(target_arch = "x86_64")]
fn native_features() -> CpuFeatures {
    static FOUND: OnceLock<CpuFeatures> = OnceLock::new();
    *FOUND.get_or_init(|| CpuFeatures {
        avx2: has_avx2(),
        avx_vnni: is_x86_feature_detected!("avxvnni") && std::env::var_os(NO_AVX_VNNI).is_none(),
        avx512: has_avx512(),
        avx512_bf16: is_x86_feature_detected!("avx512bf16"),
        avx512_fp16: is_x86_feature_detected!("avx512fp16"),
        amx: amx::found(),
    })
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

/// The best tier of this CPU, without instructions that are emulated in it (`assume_amx`). What runs without a choice of tier uses this one.
pub fn native_tier() -> Tier {
    native_features().tier()
}
