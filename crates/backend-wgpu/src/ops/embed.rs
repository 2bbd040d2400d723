//! Rows of the embedding. The host looks them up in the file, since a step needs few of a table that is as large as the logits' weight.

use crate::compile::Compiler;
use crate::error::GpuError;
use crate::run::{Operation, Run};
use crate::values::Operand;
use latent_backend::{BackendError, Batch, InputRow, WeightRows};
use latent_graph::circuit::Weight;
use latent_graph::ir::{AttentionPath, Node};

struct Embed(Operand);

impl Operation for Embed {
    fn record(&self, run: &mut Run<'_>, _path: AttentionPath) -> Result<(), GpuError> {
        let row = 4 * u64::from(self.0.row_width());
        let bytes = run.rows as u64 * row;
        let at = 4 * u64::from(self.0.offset);
        run.commands.copy(run.embedded, 0..bytes, run.memory.of(self.0.home), at);
        Ok(())
    }
}

pub(super) fn compile(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let y = compiler.output(node, 0)?;
    Ok(Box::new(Embed(compiler.cut(y, y.row_width() as usize)?)))
}

/// Elements of the rows of a batch: looked up, times the model's factor, or as they came in place of that.
///
/// # Errors
/// When the embedding cannot be decoded.
pub(crate) fn rows(
    batch: &Batch,
    rows: WeightRows<'_>,
    weight: &Weight,
    scale: f64,
) -> Result<Vec<f32>, BackendError> {
    let mut made = Vec::new();
    for row in 0..batch.rows() {
        match batch.input(row) {
            InputRow::Token(token) => {
                let looked_up = rows.rows(weight, 0, token as usize..token as usize + 1)?;
                made.extend(looked_up.into_iter().map(|x| x * scale as f32));
            }
            InputRow::Embedding(elements) => made.extend_from_slice(elements),
        }
    }
    Ok(made)
}
