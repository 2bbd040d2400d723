//! Placement of layers on backends.

use super::planned::BackendPlan;
use crate::device_layers::{DeviceLayers, Offload};
use crate::draft_kind::Draft;
use crate::error::EngineError;
use crate::options::EngineOptions;
use latent_backend::Backend;
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::ir::ModelSide;
use latent_types::Setting;

/// Default context, in tokens, that `auto` leaves room for.
const AUTO_CONTEXT: usize = 4096;

/// The backend that computes logits, and the one that has the layers before a cut.
#[derive(Clone, Copy)]
pub(crate) struct BackendPlacement<'a> {
    pub(crate) back: &'a dyn Backend,
    pub(crate) front: Option<(&'a dyn Backend, usize)>,
}

impl<'a> BackendPlacement<'a> {
    /// Where the options want the layers of a model.
    ///
    /// # Errors
    /// A model that several hosts share, too; what planning fails with.
    pub(crate) fn of(
        device: &'a dyn Backend,
        options: &'a EngineOptions,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<BackendPlacement<'a>, EngineError> {
        let Some(Offload { front, layers }) = &options.offload else {
            return Ok(BackendPlacement { back: device, front: None });
        };
        if options.hosts.is_some() {
            return Err(EngineError::Options(format!(
                "{} does not go with {}: a rank has its layers on one device",
                Setting::Offload,
                Setting::Hosts
            )));
        }
        let first = match layers.first(config.layers) {
            Some(first) => first,
            None => fitting(device, options, config, checkpoint)?,
        };
        Ok(match first {
            0 => BackendPlacement { back: device, front: None },
            first if first > config.layers => BackendPlacement { back: &**front, front: None },
            first => BackendPlacement { back: device, front: Some((&**front, first)) },
        })
    }

    /// The plans of the layers from the cut on, and of what is behind them.
    pub(crate) fn plan_back(
        &self,
        options: &EngineOptions,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<BackendPlan<'a>, EngineError> {
        let mut resolved = options.resolve(self.back, config)?;
        resolved.side = self.front.map(|(_, cut)| ModelSide::From(cut));
        BackendPlan::new(resolved, config, checkpoint)
    }

    /// The plans of the layers before the cut, with the cache and the steps of what is behind it.
    pub(crate) fn plan_front(
        &self,
        options: &EngineOptions,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        back: &BackendPlan<'_>,
    ) -> Result<Option<BackendPlan<'a>>, EngineError> {
        let Some((front, cut)) = self.front else { return Ok(None) };
        let cache = Some(back.resolved.options.stages.bind.cache);
        let options = EngineOptions { cache, draft: Draft::None, ..options.clone() };
        let mut resolved = options.resolve(front, config)?;
        resolved.side = Some(ModelSide::Before(cut));
        Ok(Some(BackendPlan::new(resolved, config, checkpoint)?))
    }
}

/// The first layer of as many as fit into the device's memory.
fn fitting(
    device: &dyn Backend,
    options: &EngineOptions,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
) -> Result<usize, EngineError> {
    if !device.has_own_memory() {
        return Ok(0);
    }
    let context = options.context.unwrap_or(AUTO_CONTEXT).min(config.context_length);
    let whole = BackendPlacement { back: device, front: None }.plan_back(options, config, checkpoint)?;
    let wanted = whole.needed(config, context).total();
    let room = device.room(wanted)?;
    if room >= wanted {
        return Ok(0);
    }
    let most = layers_that_fit(device, options, config, checkpoint, (context, room))?;
    Ok(config.layers + 1 - most)
}

/// The number of layers, counted as in [`DeviceLayers`], that fit into `room` bytes of a device
/// with a context of `context` tokens.
///
/// # Errors
/// What planning fails with.
pub(crate) fn layers_that_fit(
    device: &dyn Backend,
    options: &EngineOptions,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    (context, room): (usize, u64),
) -> Result<usize, EngineError> {
    // none always fits, and all are known not to
    let (mut fits, mut does_not) = (0, config.layers + 1);
    while does_not - fits > 1 {
        let middle = usize::midpoint(fits, does_not);
        let cut = DeviceLayers::Count(middle).first(config.layers).unwrap_or_default();
        // only where the cut is matters, not what is before it
        let planned = BackendPlacement { back: device, front: Some((device, cut)) }
            .plan_back(options, config, checkpoint)?;
        if planned.needed(config, context).total() <= room {
            fits = middle;
        } else {
            does_not = middle;
        }
    }
    Ok(fits)
}
