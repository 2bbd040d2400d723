//! `split`: parts of each head.

use super::shared::{OURS, X};
use super::{NodeShapes, OpReference, Operation, Outputs, Port, ShapeRule};

/// Views of parts of each head.
pub(super) struct Split;

impl Operation for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn inputs(&self) -> &'static [Port] {
        &[X]
    }

    fn outputs(&self) -> Outputs {
        Outputs::PerPart(Port::f32("part", "rows × part").with_note("a view of a range of each head"))
    }

    fn is_view(&self) -> bool {
        true
    }

    /// The parts are next to one another, and together the whole.
    fn check(&self, node: &mut NodeShapes<'_>) {
        let whole = node.inputs[0].clone();
        let mut at = 0;
        for part in node.outputs.clone() {
            if part.heads != whole.heads || part.offset != Some(at) {
                let text =
                    format!("{} does not begin at element {at} of each head of {}", part.name, whole.name);
                node.wrong(ShapeRule::Kept, part.name, text);
            }
            at += part.width;
        }
        if at != whole.width {
            let text = format!("the parts have {at} elements, a head has {}", whole.width);
            node.wrong(ShapeRule::Kept, None, text);
        }
    }

    fn reference(&self) -> OpReference {
        OpReference::new("Parts of each head, as views: nothing is moved.", "[a | b] = x", OURS)
    }
}
