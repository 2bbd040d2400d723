//! State of one layer per sequence, kept between steps.

use latent_graph::Stage;
use latent_graph::circuit::StateShape;
use latent_graph::ir::KvLayer;
use latent_types::CacheType;

/// What one layer keeps of a sequence between steps. A model may mix both kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// A row per token: attention. Forgetting the last tokens means counting fewer rows.
    PerToken(KvLayer),
    /// A state of fixed size, which every token changes: linear attention, state-space models. It cannot forget tokens; an earlier state must
    /// have been kept.
    Recurrent(RecurrentLayer),
}

/// The recurrent state of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayer {
    /// The layer that owns it.
    pub layer: usize,
    pub shape: StateShape,
}

impl LayerState {
    /// What the layers of these stages keep, as their plans say.
    pub fn of_stages(stages: &[Stage]) -> Vec<LayerState> {
        let of = |layer: &KvLayer| match layer.state {
            Some(shape) => LayerState::Recurrent(RecurrentLayer { layer: layer.layer, shape }),
            None => LayerState::PerToken(layer.clone()),
        };
        stages.iter().flat_map(Stage::kv_layers).map(of).collect()
    }

    /// Its rows, if it has any.
    pub fn per_token(&self) -> Option<&KvLayer> {
        match self {
            LayerState::PerToken(rows) => Some(rows),
            LayerState::Recurrent(_) => None,
        }
    }

    /// Its state, if it has one.
    pub fn recurrent(&self) -> Option<&RecurrentLayer> {
        match self {
            LayerState::PerToken(_) => None,
            LayerState::Recurrent(state) => Some(state),
        }
    }

    /// Bytes that one token takes in these layers together.
    pub fn token_bytes(layers: &[LayerState], cache_type: CacheType) -> usize {
        layers.iter().filter_map(LayerState::per_token).map(|rows| rows.row(cache_type).bytes()).sum()
    }

    /// Bytes that the recurrent state of one sequence takes in these layers together.
    pub fn state_bytes(layers: &[LayerState]) -> usize {
        layers.iter().filter_map(LayerState::recurrent).map(|state| state.shape.bytes()).sum()
    }
}
