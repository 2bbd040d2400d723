//! A model as ranks that share its layers see it.

use super::load::{Case, Load, Loads};
use latent_graph::config::ModelConfig;
use latent_graph::passes::MlaChoice;
use latent_graph::{Partition, Stage};
use latent_types::CacheType;

/// A model, and how plans are made of a part of it.
pub struct PlannedModel<'a> {
    /// The whole model.
    pub config: &'a ModelConfig,
    /// Formulation of attention.
    pub mla: MlaChoice,
    /// Type of the KV cache.
    pub cache: CacheType,
    /// The plans of the model with this config, or why it cannot be cut so.
    pub stages: &'a dyn Fn(&ModelConfig) -> Result<Vec<Stage>, String>,
}

/// What each of the ranks takes that share every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLoad {
    /// Ranks that share heads and columns.
    pub tensor: usize,
    /// Ranks that share routed experts.
    pub experts: usize,
    /// Of each layer, on the rank that has most of it.
    pub layers: Vec<Load>,
    /// Of what rank 0 has in addition to its layers: embedding, final norm, `lm_head`.
    pub around: Load,
    /// Elements of a residual row.
    pub row: f64,
}

impl SharedLoad {
    /// From the plans of such ranks.
    ///
    /// # Errors
    /// Why the model cannot be cut so.
    pub fn new(
        model: &PlannedModel<'_>,
        tensor: usize,
        experts: usize,
        case: &Case,
    ) -> Result<SharedLoad, String> {
        let members = tensor.max(experts);
        let loads = |member: usize| -> Result<Loads, String> {
            let config = if members == 1 {
                model.config.clone()
            } else {
                let partition = partition("pipeline=1", tensor, experts)?;
                let part =
                    partition.part(model.config, member, members).map_err(|error| error.to_string())?;
                model.config.of_part(part)
            };
            Ok(Loads::of_stages(&(model.stages)(&config)?, &config, (model.mla, model.cache), case))
        };
        let first = loads(0)?;
        // shares are rounded down but for the last
        let layers = if members == 1 { first.layers } else { loads(members - 1)?.layers };
        Ok(SharedLoad { tensor, experts, layers, around: first.around, row: model.config.hidden_size as f64 })
    }

    /// Ranks that share a layer.
    pub fn members(&self) -> usize {
        self.tensor.max(self.experts)
    }

    /// The partition with these stretches of layers.
    ///
    /// # Errors
    /// More ranks than a partition can have.
    pub fn partition(&self, stretches: &[usize]) -> Result<Partition, String> {
        let counts: Vec<String> = stretches.iter().map(usize::to_string).collect();
        partition(&format!("layers={}", counts.join(":")), self.tensor, self.experts)
    }
}

fn partition(stretches: &str, tensor: usize, experts: usize) -> Result<Partition, String> {
    let mut text = stretches.to_owned();
    for (key, members) in [("tensor", tensor), ("experts", experts)] {
        if members > 1 {
            text += &format!(",{key}={members}");
        }
    }
    text.parse().map_err(|error: latent_graph::PartitionError| error.to_string())
}
