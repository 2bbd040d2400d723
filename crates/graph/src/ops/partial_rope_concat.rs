//! `partial_rope_concat`: the key of each head, of which only the last part is rotated.

use super::shared::{K_ROPE, MLA};
use super::{NodeMaker, OpReference, Operation, Outputs, Port, ShapeRule};

/// Keys as attention reads them.
pub(super) struct PartialRopeConcat;

impl Operation for PartialRopeConcat {
    fn name(&self) -> &'static str {
        "partial_rope_concat"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("expand_stores")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("k_nope", "rows × heads × nope"), K_ROPE] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("key", "rows × heads × (nope + rope)")] })
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "The key of each head: its part without position, and the rotated key that all heads share.",
            "key = [k_nope | k_rope]",
            MLA,
        )
    }
}
