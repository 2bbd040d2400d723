//! The command line flags of the settings that errors of the libraries name.

use latent_types::Setting;

/// The flag of a setting.
pub fn flag_of(setting: Setting) -> &'static str {
    match setting {
        Setting::AllowRequantize => "--allow-requantize",
        Setting::BatchTokens => "--batch-size",
        Setting::Cache => "--cache-type",
        Setting::CacheTokens => "--cache-tokens",
        Setting::CacheForm => "--expanded-cache",
        Setting::Circuit => "--circuit",
        Setting::Context => "--ctx-size",
        Setting::Device => "--device",
        Setting::Draft => "--draft",
        Setting::Force => "--force",
        Setting::GpuFallback => "--gpu-fallback",
        Setting::Hosts => "--partition",
        Setting::Hessians => "--hessians",
        Setting::Imatrix => "--imatrix",
        Setting::Keep => "--keep",
        Setting::Layers => "--layers",
        Setting::Mla => "--mla",
        Setting::Offline => "--offline",
        Setting::Offload => "--n-gpu-layers",
        Setting::Precision => "--precision",
        Setting::PreTokenizer => "--pre",
        Setting::Raw => "--raw",
        Setting::Shift => "--context-shift",
        Setting::SparseAttention => "--sparse-attention",
        Setting::StateCache => "--state-cache",
        Setting::Threads => "--threads",
        Setting::Tier => "--isa",
        Setting::Tokens => "--tokens",
        Setting::Weights => "--weights",
    }
}
