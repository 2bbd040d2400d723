//! `concat`: two rows side by side.

use super::shared::OURS;
use super::{NodeShapes, OpReference, Operation, Outputs, Port, ShapeRule};

/// Two rows as one.
pub(super) struct Concat;

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("a", "rows × width"), Port::f32("b", "rows × part")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × outputs").with_note("width + part elements")] })
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        let parts = node.inputs[0].row_width() + node.inputs[1].row_width();
        let whole = node.outputs[0].row_width();
        if parts != whole {
            let text = format!("the parts have {parts} elements, the row has {whole}");
            node.wrong(ShapeRule::Kept, None, text);
        }
    }

    fn reference(&self) -> OpReference {
        OpReference::new("Two rows side by side, copied into one.", "y = [a | b]", OURS)
    }
}
