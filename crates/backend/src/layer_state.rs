//! The state that a layer keeps per sequence between steps.

use latent_graph::Stage;
use latent_graph::circuit::StateShape;
use latent_graph::ir::KvLayer;
use latent_types::CacheType;

/// The state that a layer keeps per sequence between steps. A model may have both kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// A row per token: attention. To truncate a sequence, fewer rows are counted.
    PerToken(KvLayer),
    /// A state of fixed size, which every token changes: linear attention, state-space models. It
    /// cannot be truncated; only a snapshot can be restored.
    Recurrent(RecurrentLayer),
}

/// The recurrent state of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayer {
    /// Index of the layer.
    pub layer: usize,
    pub shape: StateShape,
}

impl LayerState {
    /// The states of the layers of these stages, from their plans.
    pub fn of_stages(stages: &[Stage]) -> Vec<LayerState> {
        let of = |layer: &KvLayer| match layer.state {
            Some(shape) => LayerState::Recurrent(RecurrentLayer { layer: layer.layer, shape }),
            None => LayerState::PerToken(layer.clone()),
        };
        stages.iter().flat_map(Stage::kv_layers).map(of).collect()
    }

    pub fn per_token(&self) -> Option<&KvLayer> {
        match self {
            LayerState::PerToken(rows) => Some(rows),
            LayerState::Recurrent(_) => None,
        }
    }

    pub fn recurrent(&self) -> Option<&RecurrentLayer> {
        match self {
            LayerState::PerToken(_) => None,
            LayerState::Recurrent(state) => Some(state),
        }
    }

    /// Size of one token in all of these layers, in bytes.
    pub fn token_bytes(layers: &[LayerState], cache_type: CacheType) -> usize {
        layers.iter().filter_map(LayerState::per_token).map(|rows| rows.row(cache_type).bytes()).sum()
    }

    /// Size of the recurrent state of one sequence in all of these layers, in bytes.
    pub fn state_bytes(layers: &[LayerState]) -> usize {
        layers.iter().filter_map(LayerState::recurrent).map(|state| state.shape.bytes()).sum()
    }
}
