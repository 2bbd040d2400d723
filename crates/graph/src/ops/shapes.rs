//! The shapes of one node, for the checks of operations.

use super::{Epilogue, RowCount};

/// A rule on shapes, named after the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeRule {
    /// A matmul reads rows of another width than its weight takes.
    Takes,
    /// A matmul produces rows of another width than its weight gives.
    Gives,
    /// Operands that should have one shape have several.
    Kept,
    /// A norm's weight has another width than its input.
    Norm,
    /// A head, latent, query or value has another width than the config.
    Attention,
    /// Router, routing and experts disagree on counts.
    Experts,
}

/// A value that a node reads or produces.
#[derive(Clone, Debug)]
pub struct ValueShape {
    /// Its name, as findings show it.
    pub name: String,
    pub rows: RowCount,
    /// Heads per row.
    pub heads: usize,
    /// Elements per head.
    pub width: usize,
    /// First element within each head, if it is a view of the node's first input.
    pub offset: Option<usize>,
}

impl ValueShape {
    /// Elements per row, all heads.
    pub fn row_width(&self) -> usize {
        self.heads * self.width
    }
}

/// A weight of a node.
#[derive(Clone, Copy, Debug)]
pub struct WeightShape<'a> {
    pub slot: &'a str,
    /// Its shape, outermost dimension first.
    pub shape: &'a [usize],
}

impl WeightShape<'_> {
    /// Inputs: the innermost dimension.
    pub fn inputs(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Outputs: the second dimension from the inside, 1 for a vector.
    pub fn outputs(&self) -> usize {
        if self.shape.len() < 2 { 1 } else { self.shape[self.shape.len() - 2] }
    }
}

/// A wrong shape of a node.
#[derive(Debug)]
pub struct ShapeProblem {
    /// The rule that is broken.
    pub rule: ShapeRule,
    /// The port, slot or value.
    pub at: Option<String>,
    /// The problem.
    pub text: String,
}

/// The shapes of one node, and the problems found.
#[derive(Debug)]
pub struct NodeShapes<'a> {
    /// Inputs, including a residual that the node adds to.
    pub inputs: Vec<ValueShape>,
    pub outputs: Vec<ValueShape>,
    pub weights: Vec<WeightShape<'a>>,
    /// Epilogue of the node.
    pub epilogue: Epilogue,
    /// Problems found.
    pub problems: Vec<ShapeProblem>,
}

impl NodeShapes<'_> {
    /// Adds a problem at a port, slot or value.
    pub fn wrong(&mut self, rule: ShapeRule, at: impl Into<Option<String>>, text: String) {
        self.problems.push(ShapeProblem { rule, at: at.into(), text });
    }

    /// Checks that every input has as many elements per row as the output.
    pub fn keeps_width(&mut self) {
        for i in 0..self.inputs.len() {
            self.same_width(i);
        }
    }

    /// Checks that input `i` has as many elements per row as the first output.
    pub fn same_width(&mut self, i: usize) {
        let (a, b) = (&self.inputs[i], &self.outputs[0]);
        if a.row_width() != b.row_width() {
            let text = format!(
                "{} has {} × {} elements, {} has {} × {}",
                a.name, a.heads, a.width, b.name, b.heads, b.width
            );
            self.wrong(ShapeRule::Kept, None, text);
        }
    }

    /// Checks that a weight of shape `[width]` fits the first input.
    pub fn norm_width(&mut self, slot: &str, shape: &[usize]) {
        let width = self.inputs.first().map_or(0, ValueShape::row_width);
        if shape != [width] {
            let text = format!("the weight has shape {shape:?}, the row has {width} elements");
            self.wrong(ShapeRule::Norm, slot.to_owned(), text);
        }
    }
}
