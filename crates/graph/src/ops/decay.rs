//! `softplus_decay` and `bounded_decay`: by how much the state of a head fades at each token.

use super::shared::KDA;
use super::{
    NodeShapes, NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// The log decay of each row of a head's state, in one of two forms.
pub(super) struct DecayOperation {
    name: &'static str,
    kind: OpKind,
    summary: &'static str,
    formula: &'static str,
}

/// −rate · softplus, which has no lower bound (Kimi-Linear).
pub(super) const SOFTPLUS_DECAY: DecayOperation = DecayOperation {
    name: "softplus_decay",
    kind: OpKind::SoftplusDecay,
    summary: "The log decay of each row of a head's state, without a lower bound: the form of Kimi-Linear.",
    formula: "g = −a · softplus(z + dt_bias),  a = e^a_log = |a_rate|,  softplus(z) = ln(1 + eᶻ)",
};

/// bound · sigmoid (Ling-3.0).
pub(super) const BOUNDED_DECAY: DecayOperation = DecayOperation {
    name: "bounded_decay",
    kind: OpKind::BoundedDecay,
    summary: "The log decay of each row of a head's state, between a bound and 0: the form of Ling-3.0. A model trained with one form does \
              not work with the other.",
    formula: "g = bound · σ(a · (z + dt_bias)),  a = e^a_log = |a_rate|",
};

const RAW: Port = Port::f32("decay_raw", "rows × kda_heads*kda_width");
const LOG_DECAY: Port = Port::f32("log_decay", "rows × kda_heads × kda_width")
    .with_note("at most 0, one for each row of a head's state");
const SLOTS: &[WeightSlot] = &[
    WeightSlot::new("a_log", "kda_heads").with_note("the rate's logarithm"),
    WeightSlot::new("a_rate", "kda_heads").with_note("the rate with either sign, in its place in GGUF files"),
    WeightSlot::new("dt_bias", "kda_heads*kda_width"),
];

fn rate_and_bias(weights: &NodeWeights) -> Result<(), &'static str> {
    if weights.count == 2 { Ok(()) } else { Err("two: a_log or a_rate, then dt_bias") }
}

/// That each of the two weights is in its place.
fn check_slots(node: &mut NodeShapes<'_>) {
    let slots: Vec<&str> = node.weights.iter().map(|weight| weight.slot).collect();
    if !matches!(slots[..], ["a_log" | "a_rate", "dt_bias"]) {
        let text = format!("its weights are {slots:?}, expected a_log or a_rate, then dt_bias");
        node.wrong(ShapeRule::Attention, None, text);
    }
}

impl Operation for DecayOperation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[RAW] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[LOG_DECAY] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        SLOTS
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        rate_and_bias(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(self.kind)
    }

    fn by_heads(&self) -> bool {
        true
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        check_slots(node);
    }

    fn reference(&self) -> OpReference {
        OpReference::new(self.summary, self.formula, KDA)
    }
}
