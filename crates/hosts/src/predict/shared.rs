//! Load of the layers of a model on each of the ranks that share them.

use super::load::{ModelLoads, PartLoad, PredictionCase};
use latent_graph::config::ModelConfig;
use latent_graph::passes::MlaChoice;
use latent_graph::{Partition, Stage};
use latent_types::CacheType;

/// A model and the function that plans parts of it.
pub struct PlannedModel<'a> {
    /// The whole model.
    pub config: &'a ModelConfig,
    /// Formulation of attention.
    pub mla: MlaChoice,
    /// Type of the KV cache.
    pub cache: CacheType,
    /// Maximum number of rows of a step.
    pub step_rows: usize,
    /// Plans the part of the model with this config, or returns why it cannot be split this way.
    pub plan: &'a dyn Fn(&ModelConfig) -> Result<PlannedPart, String>,
}

/// The plans of a part of a model.
pub struct PlannedPart {
    pub stages: Vec<Stage>,
    /// Bytes of scratch memory, without buffers for messages between ranks.
    pub scratch: f64,
}

/// The load of one of the ranks that share each layer.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLoad {
    /// Ranks that share heads and columns.
    pub tensor: usize,
    /// Ranks that share routed experts.
    pub experts: usize,
    /// The load of each layer, on the rank that has most of it.
    pub layers: Vec<PartLoad>,
    /// The additional load of rank 0: embedding, final norm and `lm_head`.
    pub around: PartLoad,
    /// Elements of a residual row.
    pub row: f64,
    /// Bytes of scratch memory.
    pub scratch: f64,
    /// Maximum number of rows of a step.
    pub step_rows: usize,
}

impl SharedLoad {
    /// Counts the load from the plans of such ranks.
    pub fn new(
        model: &PlannedModel<'_>,
        tensor: usize,
        experts: usize,
        case: &PredictionCase,
    ) -> Result<SharedLoad, String> {
        let members = tensor.max(experts);
        let loads = |member: usize| -> Result<(ModelLoads, f64), String> {
            let config = if members == 1 {
                model.config.clone()
            } else {
                let part = Partition::pipeline(1)
                    .shared_by(tensor, experts)
                    .and_then(|partition| partition.part(model.config, member, members))
                    .map_err(|error| error.to_string())?;
                model.config.of_part(part)
            };
            let planned = (model.plan)(&config)?;
            let of_layers = ModelLoads::of_stages(&planned.stages, &config, (model.mla, model.cache), case);
            Ok((of_layers, planned.scratch))
        };
        let (first, scratch) = loads(0)?;
        // Shares are rounded down except the last one, so the last member has the largest load.
        // Rank 0 has `around`.
        let (layers, scratch) = if members == 1 {
            (first.layers, scratch)
        } else {
            let (last, more) = loads(members - 1)?;
            (last.layers, scratch.max(more))
        };
        Ok(SharedLoad {
            tensor,
            experts,
            layers,
            around: first.around,
            row: model.config.hidden_size as f64,
            scratch,
            step_rows: model.step_rows,
        })
    }

    /// Bytes per rank in addition to weights and cache: scratch memory of steps and buffers for
    /// messages between ranks.
    pub(super) fn overhead(&self, stretches: usize, case: &PredictionCase) -> f64 {
        let elements = self.step_rows.saturating_mul(self.row as usize);
        self.scratch
            + latent_backend::collective_bytes((self.members(), stretches), case.wire, elements) as f64
    }

    /// The number of ranks that share a layer.
    pub fn members(&self) -> usize {
        self.tensor.max(self.experts)
    }

    /// The partition with these stretches of layers.
    pub fn partition(&self, stretches: &[usize]) -> Result<Partition, String> {
        let partition = Partition::of_layers(stretches.to_vec()).shared_by(self.tensor, self.experts);
        partition.map_err(|error| error.to_string())
    }
}
