//! [`CpuBackend`]: its target, the memory that a model needs, and the machine's peak rates.

use crate::bandwidth::read_bandwidth;
use crate::loader;
use crate::model::CpuModel;
use crate::ops::expanded_layout::max_expanded_len;
use crate::ops::kv_splits::KV_SPLITS;
use latent_backend::{
    Backend, BackendError, BackendModel, LoadRequest, MemoryEstimate, ModelOptions, PeakRates, RankLinks,
    WeightBytes, WeightSource,
};
use latent_graph::ir::AttentionPath;
use latent_graph::{BackendTarget, LM_HEAD_ROWS, ModelConfig, Stage};
use latent_kernels::CorePeak;
use latent_threads::{Placement, ThreadPool};
use latent_types::{KernelContract, Setting, Tier};
use std::sync::{Mutex, PoisonError};

/// The CPU of this host.
pub struct CpuBackend {
    target: BackendTarget,
}

impl Default for CpuBackend {
    fn default() -> CpuBackend {
        CpuBackend::new()
    }
}

impl CpuBackend {
    /// Creates the backend with every kernel of this build, including those that this processor
    /// cannot run. [`isa`](Backend::isa) gives the highest tier that it can.
    pub fn new() -> CpuBackend {
        let contracts: Vec<KernelContract> =
            latent_kernels::table().iter().map(|(contract, _)| *contract).collect();
        let target = BackendTarget {
            kv_splits: Some(KV_SPLITS),
            sparse_attention: true,
            adapters: true,
            ..BackendTarget::new("cpu", contracts)
        };
        CpuBackend { target }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        self.target.name
    }

    fn target(&self) -> &BackendTarget {
        &self.target
    }

    fn isa(&self, limit: Option<Tier>) -> Result<Tier, BackendError> {
        let best = latent_kernels::features().tier();
        match limit {
            Some(tier) if tier > best => Err(BackendError::Unsupported(format!(
                "this CPU does not support {tier}: its best ISA is {best}; use {}",
                Setting::Tier.to("auto")
            ))),
            Some(tier) => Ok(tier),
            None => Ok(latent_kernels::native_tier()),
        }
    }

    fn weight_bytes(&self, stages: &[Stage], source: WeightSource<'_>) -> WeightBytes {
        loader::weight_bytes(stages, source)
    }

    fn scratch_bytes(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        context: usize,
    ) -> MemoryEstimate {
        let a = &config.attention;
        // Stages and batch buckets run one after the other in one arena.
        let arena = stages
            .iter()
            .flat_map(|stage| &stage.plans)
            .map(|plan| plan.arena.bytes / size_of::<f32>())
            .max()
            .unwrap_or(0);
        // Saturating: the sizes come from a file and from the command line. An overflow would panic
        // here, but a huge estimate is refused with an error.
        let max_rows = options.stages.max_batch_tokens;
        let rows =
            max_rows.saturating_mul(config.hidden_size).saturating_add(LM_HEAD_ROWS * config.vocab_size);
        let naive = options.stages.mla.path(max_rows, a) == AttentionPath::Naive;
        let expanded = if naive { max_expanded_len(context, a) } else { 0 };
        let collectives = config
            .part
            .as_deref()
            .map_or(0, |part| RankLinks::bytes(part, max_rows.saturating_mul(config.hidden_size)));
        MemoryEstimate {
            arena: (arena.saturating_add(rows) as u64).saturating_mul(4).saturating_add(collectives),
            expanded: (expanded as u64).saturating_mul(4),
            ..MemoryEstimate::default()
        }
    }

    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn BackendModel>, BackendError> {
        Ok(Box::new(CpuModel::load(request)?))
    }

    fn limits(&self, placement: &Placement, tier: Tier) -> Result<PeakRates, BackendError> {
        let refused = |error| BackendError::System { what: "measuring the machine's limits", error };
        let mut thread_pool = ThreadPool::placed(placement).map_err(refused)?;
        let peaks: Mutex<Vec<CorePeak>> = Mutex::default();
        // All cores are measured concurrently: they share a power budget, so a core may run slower
        // when the others are busy too.
        thread_pool.run(&|_| {
            let peak = latent_kernels::peak(tier);
            peaks.lock().unwrap_or_else(PoisonError::into_inner).push(peak);
        });
        let peaks = peaks.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(PeakRates {
            read_bandwidth: read_bandwidth(placement).map_err(refused)?,
            int8_macs: peaks.iter().map(|p| p.int8).sum(),
            f32_macs: peaks.iter().map(|p| p.f32).sum(),
            f16_macs: peaks.iter().map(|p| p.f16).sum(),
            bf16_macs: peaks.iter().map(|p| p.bf16).sum(),
            amx_int8_macs: peaks.iter().map(|p| p.amx_int8).sum(),
        })
    }
}
