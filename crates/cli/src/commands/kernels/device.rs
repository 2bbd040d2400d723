//! The selected device and the filter of kernels.

use crate::exit::UsageError;
use anyhow::Result;
use latent_backends::DeviceKernels;
use latent_conformance::KernelFilter;
use latent_types::Tier;

/// Filters cases and kernels by words. Instruction sets are those of the CPU.
pub(super) fn filter(device: &DeviceKernels, words: &[String], tier: Option<Tier>) -> Result<KernelFilter> {
    let filter = KernelFilter::new(words);
    match tier {
        None => Ok(filter),
        Some(tier) if device.gpu.is_none() => Ok(filter.level(tier.name())),
        Some(tier) => Err(UsageError(format!(
            "--isa {tier} is an instruction set of the CPU and cannot be used with a GPU"
        ))
        .into()),
    }
}

/// The error of a filter that matches nothing: a typo should not look like success.
pub(super) fn nothing(words: &[String]) -> Result<()> {
    let problem = format!(
        "no kernel or case name contains all of {:?}: `latent kernels support` and `latent kernels test \
         --cases` list the names",
        words.join(" ")
    );
    Err(UsageError(problem).into())
}

/// Name of the device that runs the kernels.
pub(super) fn device_name(device: &DeviceKernels) -> String {
    match &device.gpu {
        None => crate::cpu_info::cpu_info(),
        Some(gpu) => format!("{}: {}", gpu.name, gpu.kind),
    }
}
