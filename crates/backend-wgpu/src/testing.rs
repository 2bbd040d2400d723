//! Devices for tests.

use crate::adapters::{AdapterDescription, AdapterKind};
use crate::device::Device;
use crate::error::GpuError;
use crate::variants::{KernelVariant, KernelVariants};
use latent_graph::passes::Precision;
use std::sync::{Arc, Mutex};

/// Opens a separate device for a test. Without an adapter it prints that the test is skipped, or
/// panics if `REQUIRE_GPU` is set.
pub(crate) fn device() -> Option<Arc<Device>> {
    open(None)
}

/// A device whose products use no optional features.
pub(crate) fn plain_device() -> Option<Arc<Device>> {
    open(Some(KernelVariants::default()))
}

/// A device that uses one variant of products. If the adapter does not support it, a message says
/// that the test is skipped.
pub(crate) fn device_with(variant: KernelVariant) -> Option<Arc<Device>> {
    let adapters = crate::adapters();
    let Some(adapter) = adapters.first() else { return open(None) };
    let variants = variant.alone(adapter);
    if variants.is_none() {
        println!("SKIPPED: {variant}, which {} does not support", adapter.name);
        return None;
    }
    open(variants)
}

/// A device that quantizes inputs to int8 and adds sums within subgroups, if the adapter supports
/// it.
pub(crate) fn integer_subgroup_device() -> Option<Arc<Device>> {
    let device = device_with(KernelVariant::Subgroups)?;
    let variants = device.variants.map(|variants| KernelVariants { integers: true, ..variants });
    open(variants)
}

/// A device whose products use the variants of a hardware adapter.
pub(crate) fn device_as_hardware(precision: Precision) -> Option<Arc<Device>> {
    let Some(adapter) = crate::adapters().into_iter().next() else { return open(None) };
    open(Some(KernelVariants::of(&AdapterDescription { kind: AdapterKind::Discrete, ..adapter }, precision)))
}

/// A device whose shaders check every index and every loop.
pub(crate) fn checking_device(variants: Option<KernelVariants>) -> Option<Arc<Device>> {
    open(variants).map(|_| Device::checking(0, variants).expect("an adapter that has opened"))
}

fn open(variants: Option<KernelVariants>) -> Option<Arc<Device>> {
    // One at a time: loading a Vulkan driver in several threads concurrently is not what is tested
    // here.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    match Device::open_with(0, variants) {
        Ok(device) => Some(device),
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no adapter");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
