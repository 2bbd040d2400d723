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

/// Context, in tokens, for which `auto` leaves memory if the options set none. The model's limit
/// would leave too little for layers.
const AUTO_CONTEXT: usize = 4096;

/// The backend that computes logits, and the backend of the layers before a cut with the cut.
#[derive(Clone, Copy)]
pub(crate) struct BackendPlacement<'a> {
    pub(crate) back: &'a dyn Backend,
    pub(crate) front: Option<(&'a dyn Backend, usize)>,
}

impl<'a> BackendPlacement<'a> {
    /// The placement that the options request.
    ///
    /// # Errors
    /// If several ranks share the model, or planning fails.
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
                "{} cannot be combined with {}: a rank has all of its layers on one device",
                Setting::Offload,
                Setting::Hosts
            )));
        }
        let first = match layers.first(config.layers) {
            Some(first) => first,
            None => fitting(device, options, config, checkpoint)?,
        };
        // With all layers on one side, the model runs on that backend alone.
        Ok(match first {
            0 => BackendPlacement { back: device, front: None },
            first if first > config.layers => BackendPlacement { back: &**front, front: None },
            first => BackendPlacement { back: device, front: Some((&**front, first)) },
        })
    }

    /// The plans of the layers from the cut on and of the output.
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

    /// The plans of the layers before the cut.
    pub(crate) fn plan_front(
        &self,
        options: &EngineOptions,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        back: &BackendPlan<'_>,
    ) -> Result<Option<BackendPlan<'a>>, EngineError> {
        let Some((front, cut)) = self.front else { return Ok(None) };
        // Both sides must store rows of the same type, whatever the front's own default is. The MTP
        // layer runs on the back.
        let cache = Some(back.resolved.options.stages.bind.cache);
        let options = EngineOptions { cache, draft: Draft::None, ..options.clone() };
        let mut resolved = options.resolve(front, config)?;
        resolved.side = Some(ModelSide::Before(cut));
        Ok(Some(BackendPlan::new(resolved, config, checkpoint)?))
    }
}

/// The first layer on the device if it gets as many layers as fit into its memory.
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
    // Most models fit, and planning once is enough for these.
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
/// If planning fails.
pub(crate) fn layers_that_fit(
    device: &dyn Backend,
    options: &EngineOptions,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    (context, room): (usize, u64),
) -> Result<usize, EngineError> {
    // A binary search: 0 layers always fit, and the caller knows that all do not.
    let (mut fits, mut does_not) = (0, config.layers + 1);
    while does_not - fits > 1 {
        let middle = usize::midpoint(fits, does_not);
        let cut = DeviceLayers::Count(middle).first(config.layers).unwrap_or_default();
        // Only the back is planned, so the backend of the front does not matter.
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
