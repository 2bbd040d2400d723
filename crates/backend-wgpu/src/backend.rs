//! [`GpuBackend`]: the backend trait over a device.

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

/// The fusions that save calls.
const FUSION: Fusion =
    // Experts stay one operation, since their products share one sort. Norms are folded into stores
    // of cached rows, but not into products, whose inputs may be quantized.
    Fusion { projections: true, norms: true, ropes: true, epilogues: true, ..Fusion::NONE };

fn unfused_target() -> BackendTarget {
    BackendTarget { sparse_attention: true, masks_tokens: false, ..BackendTarget::unfused("gpu") }
}

/// A GPU or a software adapter.
pub struct GpuBackend {
    device: Arc<Device>,
    target: BackendTarget,
    /// Maximum bytes of a scratch buffer.
    scratch: u64,
    /// Maximum arithmetic operations per portion of a step.
    portion: f64,
}

impl GpuBackend {
    /// Opens the adapter at this index of [`adapters`](crate::adapters).
    ///
    /// # Errors
    /// If it does not exist, if it lacks a capability that shaders need, or if the driver fails.
    pub fn open(index: usize) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open(index)?))
    }

    /// As [`open`](Self::open), with these variants of products instead of those that follow from
    /// adapter and precision.
    pub fn open_with(index: usize, variants: KernelVariants) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open_with(index, Some(variants))?))
    }

    /// As [`open`](Self::open), without memory. Models can be loaded and the calls of their steps
    /// listed, but not run.
    pub fn open_hollow(index: usize) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend::on(Device::open_hollow(index)?))
    }

    /// Creates the backend of an open device.
    pub(crate) fn on(device: Arc<Device>) -> GpuBackend {
        let target = BackendTarget { fusion: FUSION, ..unfused_target() };
        GpuBackend { device, target, scratch: SCRATCH, portion: PORTION }
    }

    /// Uses plans without fusion, for comparison with fused ones.
    #[must_use]
    pub fn unfused(self) -> GpuBackend {
        GpuBackend { target: unfused_target(), ..self }
    }

    /// Limits scratch buffers, so that few rows take several passes.
    #[cfg(test)]
    pub(crate) fn with_scratch(self, scratch: u64) -> GpuBackend {
        GpuBackend { scratch, ..self }
    }

    /// Sets the size of portions.
    #[cfg(test)]
    pub(crate) fn with_portions_of(self, portion: f64) -> GpuBackend {
        GpuBackend { portion, ..self }
    }

    #[cfg(any(test, feature = "cases"))]
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

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
        // A loaded model shares the device.
        if let Some(device) = Arc::get_mut(&mut self.device) {
            let limit = &mut device.limits.max_storage_buffer_binding_size;
            *limit = bytes.min(*limit);
        }
        self
    }

    /// Device memory in use by models, in bytes.
    pub fn memory_in_use(&self) -> u64 {
        self.device.in_use()
    }

    /// Destroys the device. Every later call fails as on a lost device. Tests use it to provoke the
    /// loss.
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
        // Shaders do not depend on the host's instruction set.
        Ok(Tier::Portable)
    }

    fn weight_bytes(&self, stages: &[Stage], _source: WeightSource<'_>) -> WeightBytes {
        // Every weight is copied to the device, whatever its source.
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
        // Browsers do not report memory, and report a failed allocation only later, so that `room`
        // cannot measure it.
        let unknown = self.adapter().shares_memory() || self.adapter().in_page();
        self.device.hollow || !unknown || self.device.memory_limit() != u64::MAX
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
                "the GPU backend cannot run a part of a model; use {}, or omit {}",
                Setting::Device.to("cpu"),
                Setting::Hosts
            )));
        }
        let model = GpuModel::load(&self.device, (self.scratch, self.portion), request)?;
        // Browsers report errors of the uploads only now.
        self.device.wait()?;
        Ok(Box::new(model))
    }

    fn limits(&self, _placement: &Placement, _tier: Tier) -> Result<PeakRates, BackendError> {
        Ok(limits::measure(&self.device)?)
    }
}
