//! The backend traits over a device.

use crate::adapters::AdapterDescription;
use crate::buffers::largest_binding;
use crate::device::Device;
use crate::error::GpuError;
use crate::limits;
use crate::matmul::products::ProductContext;
use crate::memory::{self, SCRATCH};
use crate::model::GpuModel;
use crate::needs::needs;
use crate::portions::PORTION;
use crate::values::ValueRegisters;
use crate::variants::KernelVariants;
use crate::weights::total_bytes;
use latent_backend::{
    Backend, BackendError, BackendModel, LoadRequest, MemoryEstimate, ModelOptions, PeakRates, WeightBytes,
    WeightSource,
};
use latent_graph::{BackendTarget, Fusion, ModelConfig, Stage};
use latent_threads::Placement;
use latent_types::{Setting, Tier};
use std::sync::Arc;

/// What pays here: calls that are saved. Experts share what is sorted once for all of their products, so that these stay one operation; a norm is repeated by what
/// stores its rows, not by products, whose inputs may be quantized.
const FUSION: Fusion =
    Fusion { projections: true, norms: true, ropes: true, epilogues: true, ..Fusion::NONE };

fn unfused_target() -> BackendTarget {
    BackendTarget { sparse_attention: true, masks_tokens: false, ..BackendTarget::unfused("gpu") }
}

/// A GPU, or a program that stands for one.
pub struct GpuBackend {
    device: Arc<Device>,
    target: BackendTarget,
    scratch: u64,
    /// Operations of a portion of a step.
    portion: f64,
}

impl GpuBackend {
    /// Opens the adapter of this number, as [`adapters`](crate::adapters) counts them.
    ///
    /// # Errors
    /// When there is none, or it lacks what shaders need, or the driver fails.
    pub fn open(index: usize) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open(index)?))
    }

    /// The same with these variants of the products rather than those that suit the adapter and the precision.
    pub fn open_with(index: usize, variants: KernelVariants) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open_with(index, Some(variants))?))
    }

    /// The same without memory: models can be loaded, but not run, to look at the calls of their steps.
    pub fn open_hollow(index: usize) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open_hollow(index)?))
    }

    /// On an open device.
    pub(crate) fn on(device: Arc<Device>) -> GpuBackend {
        let target = BackendTarget { fusion: FUSION, ..unfused_target() };
        GpuBackend { device, target, scratch: SCRATCH, portion: PORTION }
    }

    /// The same with plans as the circuits state them, to hold the others against.
    #[must_use]
    pub fn unfused(self) -> GpuBackend {
        GpuBackend { target: unfused_target(), ..self }
    }

    /// The same with smaller scratch buffers, so that few rows take several passes.
    #[cfg(test)]
    pub(crate) fn with_scratch(self, scratch: u64) -> GpuBackend {
        GpuBackend { scratch, ..self }
    }

    /// The same with steps in smaller portions.
    #[cfg(test)]
    pub(crate) fn with_portions_of(self, portion: f64) -> GpuBackend {
        GpuBackend { portion, ..self }
    }

    #[cfg(any(test, feature = "cases"))]
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What it runs on.
    pub fn adapter(&self) -> &AdapterDescription {
        &self.device.description
    }

    /// Limits the device memory of models to `bytes`.
    #[must_use]
    pub fn with_memory_limit(self, bytes: u64) -> GpuBackend {
        self.device.set_memory_limit(bytes);
        self
    }

    /// Limits the size of a buffer to `bytes`. Has no effect after a model has been loaded.
    #[must_use]
    pub fn with_piece_limit(mut self, bytes: u64) -> GpuBackend {
        if let Some(device) = Arc::get_mut(&mut self.device) {
            let limit = &mut device.limits.max_storage_buffer_binding_size;
            *limit = bytes.min(*limit);
        }
        self
    }

    /// Bytes of its memory that models have now.
    pub fn memory_in_use(&self) -> u64 {
        self.device.in_use()
    }

    /// Gives the device up: every call after this fails as on one that was lost. Tests provoke the loss with it.
    pub fn destroy(&self) {
        self.device.raw.destroy();
    }
}

impl Backend for GpuBackend {
    fn name(&self) -> &'static str {
        self.target.name
    }

    fn device(&self) -> Option<String> {
        let AdapterDescription { name, interface, driver, .. } = self.adapter();
        Some(format!("{name}, {interface}, driver {driver}"))
    }

    fn target(&self) -> &BackendTarget {
        &self.target
    }

    fn isa(&self, _limit: Option<Tier>) -> Result<Tier, BackendError> {
        Ok(Tier::Portable)
    }

    fn weight_bytes(&self, stages: &[Stage], _source: WeightSource<'_>) -> WeightBytes {
        WeightBytes { owned: total_bytes(stages), mapped: 0 }
    }

    fn scratch_bytes(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        context: usize,
    ) -> MemoryEstimate {
        let products = ProductContext::new(&self.device, options.stages.bind.precision);
        let options = ModelOptions { context, ..*options };
        let mut needs = needs(stages, config, &products, &options, self.scratch);
        for plan in stages.iter().flat_map(|stage| &stage.plans) {
            ValueRegisters::assign(plan, &mut needs.registers);
        }
        MemoryEstimate { arena: needs.bytes(), ..MemoryEstimate::default() }
    }

    fn has_own_memory(&self) -> bool {
        // browsers say nothing of memory: not how much there is, and of a trial that fails only later
        let untold = self.adapter().shares_memory() || self.adapter().in_page();
        self.device.hollow || !untold || self.device.memory_limit() != u64::MAX
    }

    fn room(&self, wanted: u64) -> Result<u64, BackendError> {
        Ok(memory::room(&self.device, wanted)?)
    }

    fn largest_piece(&self) -> u64 {
        largest_binding(&self.device.limits)
    }

    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn BackendModel>, BackendError> {
        if request.communicator.is_some() {
            return Err(BackendError::Unsupported(format!(
                "the GPU backend does not run a part of a model yet; use {}, or omit {}",
                Setting::Device.to("cpu"),
                Setting::Hosts
            )));
        }
        let model = GpuModel::load(&self.device, (self.scratch, self.portion), request)?;
        // a browser says only now what it has against weights
        self.device.wait()?;
        Ok(Box::new(model))
    }

    fn limits(&self, _placement: &Placement, _tier: Tier) -> Result<PeakRates, BackendError> {
        Ok(limits::measure(&self.device)?)
    }
}
