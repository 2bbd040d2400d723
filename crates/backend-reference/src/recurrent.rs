//! A toy recurrent operation, to test recurrent state in models whose plans have none.

use latent_backend::{LayerState, RecurrentLayer, StateShape};
use latent_graph::Stage;
use latent_graph::ir::Op;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A recurrence with one step per token, elementwise over the residual stream:
/// `s ← decay · s + h`, then `h ← h + s`.
///
/// The reference backend applies it to the rows of the embedding, before the first layer. The
/// cached rows of every layer, and the logits, therefore depend on the state, so that a test that
/// compares logits notices a wrong state. The IR has no such operation: it does not occur in plans,
/// the audit or drawings.
#[derive(Clone, Debug, Default)]
pub struct ToyRecurrence {
    /// The factor on the previous state.
    pub decay: f32,
    /// While this is set, steps fail after they have written their states.
    pub fails: Arc<AtomicBool>,
}

impl ToyRecurrence {
    /// Creates a recurrence that does not fail.
    pub fn new(decay: f32) -> ToyRecurrence {
        ToyRecurrence { decay, ..ToyRecurrence::default() }
    }

    /// Updates the state with one token's row, and then the row with the state.
    pub(super) fn advance(&self, state: &mut [f32], h: &mut [f32]) {
        for (s, h) in state.iter_mut().zip(h) {
            *s = self.decay * *s + *h;
            *h += *s;
        }
    }
}

/// The cached layers of a model with `count` toy recurrences: those of its plans, followed by the
/// states of the recurrences.
pub(super) fn layer_states(stages: &[Stage], count: usize) -> Vec<LayerState> {
    let mut layers = LayerState::of_stages(stages);
    let irs = stages.iter().map(|stage| &stage.plans[0].ir);
    // Only the stage with the embedding knows the width of the residual stream.
    let embeds = irs.flat_map(|ir| ir.nodes.iter().map(move |node| (ir, node)));
    let hidden = embeds
        .filter(|(_, node)| matches!(node.op, Op::Embed { .. }))
        .map(|(ir, node)| ir.value(node.outputs[0]).row_width());
    let columns = hidden.max().unwrap_or(0);
    let shape = StateShape { heads: 1, rows: 1, columns };
    let state = |layer| LayerState::Recurrent(RecurrentLayer { layer, shape });
    layers.extend((0..count).map(state));
    layers
}
