//! A toy recurrent operation: what recurrent state is tested with as long as no operation of the IR is recurrent.

use latent_backend::{LayerState, RecurrentLayer, StateShape};
use latent_graph::Stage;
use latent_graph::ir::Op;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One step of a recurrence per token, elementwise over the residual stream: `s ← decay · s + h`, then `h ← h + s`.
///
/// The reference backend applies it to the rows of the embedding, before the first layer. The
/// cached rows of every layer, and the logits, therefore depend on the state. The IR has no such
/// operation: it does not occur in plans, the audit or drawings.
#[derive(Clone, Debug, Default)]
pub struct ToyRecurrence {
    /// What a token leaves of the state before it.
    pub decay: f32,
    /// Steps fail, once they have written their states, as long as this is set.
    pub fails: Arc<AtomicBool>,
}

impl ToyRecurrence {
    /// A recurrence that does not fail.
    pub fn new(decay: f32) -> ToyRecurrence {
        ToyRecurrence { decay, ..ToyRecurrence::default() }
    }

    /// Takes one token's row into the state, and the state into the row.
    pub(super) fn advance(&self, state: &mut [f32], h: &mut [f32]) {
        for (s, h) in state.iter_mut().zip(h) {
            *s = self.decay * *s + *h;
            *h += *s;
        }
    }
}

/// What the layers of a model with `count` toy recurrences keep: the recurrences behind the plans' own layers.
pub(super) fn layer_states(stages: &[Stage], count: usize) -> Vec<LayerState> {
    let mut layers = LayerState::of_stages(stages);
    let irs = stages.iter().map(|stage| &stage.plans[0].ir);
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
