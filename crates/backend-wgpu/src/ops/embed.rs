//! Rows of the embedding: looked up on the device, or on the host where the device has no room for the table.

use super::elementwise::Elementwise;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::product::{RowAddress, gather};
use crate::matmul::weight::DeviceWeight;
use crate::run::{GpuOperation, StageRun};
use crate::values::{ShaderOperand, internal};
use latent_backend::{BackendError, Batch, CheckpointRows, InputRow};
use latent_graph::circuit;
use latent_graph::ir::{AttentionPath, Node, Op};
use std::ops::Range;
use std::sync::Arc;

/// Rows that the host has sent.
struct UploadedRows(ShaderOperand);

impl UploadedRows {
    /// Copies rows from the `first` one of those that were sent on.
    fn copy(&self, run: &mut StageRun<'_>, first: usize, rows: Range<usize>) {
        let row = 4 * u64::from(self.0.row_width());
        let (from, to) = (first as u64 * row, 4 * u64::from(self.0.offset) + rows.start as u64 * row);
        let bytes = rows.len() as u64 * row;
        run.commands.copy(run.embedded, from..from + bytes, run.memory.of(self.0.home), to);
    }
}

impl GpuOperation for UploadedRows {
    fn record(&self, run: &mut StageRun<'_>, _path: AttentionPath) -> Result<(), GpuError> {
        self.copy(run, 0, 0..run.rows);
        Ok(())
    }
}

/// Rows of a table on the device, times the model's factor.
struct TableLookup {
    table: Arc<DeviceWeight>,
    scale: Option<Elementwise>,
    /// Rows given as embeddings, not as tokens.
    sent: UploadedRows,
}

impl GpuOperation for TableLookup {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let y = &self.sent.0;
        let place = RowAddress { binding: run.bind(y), address: y.address() };
        let tokens = (&run.step_buffer.into(), run.step.tokens);
        gather(run.commands, &self.table, tokens, run.rows, &place)?;
        self.scale.iter().try_for_each(|scale| scale.record(run, path))?;
        let batch = run.batch;
        let mut sent = 0;
        for rows in stretches((0..run.rows).map(|row| matches!(batch.input(row), InputRow::Embedding(_)))) {
            self.sent.copy(run, sent, rows.clone());
            sent += rows.len();
        }
        Ok(())
    }
}

/// Where rows next to one another are such.
fn stretches(rows: impl Iterator<Item = bool>) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (row, _) in rows.enumerate().filter(|(_, such)| *such) {
        match found.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => found.push(row..row + 1),
        }
    }
    found
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let y = compiler.output(node, 0)?;
    let y = compiler.cut(y, y.row_width() as usize)?;
    let (Op::Embed { scale }, [(_, id)]) = (node.op, &node.weights[..]) else {
        return internal("embed needs one weight".into());
    };
    let Some(table) = compiler.weights.table(compiler.plan.ir.weight(*id)) else {
        return Ok(Box::new(UploadedRows(y)));
    };
    let scale = (scale != 1.0).then(|| Elementwise::scale(compiler, y, scale)).transpose()?;
    Ok(Box::new(TableLookup { table, scale, sent: UploadedRows(y) }))
}

/// Elements that the device needs of a batch: rows that are embeddings, and those of tokens, times the model's factor, where they are looked up here.
pub(crate) fn rows(
    batch: &Batch,
    (rows, weight, scale): (CheckpointRows<'_>, &circuit::Weight, f64),
    looks_up: bool,
) -> Result<Vec<f32>, BackendError> {
    let mut made = Vec::new();
    for row in 0..batch.rows() {
        match batch.input(row) {
            InputRow::Token(token) if looks_up => {
                let looked_up = rows.rows(weight, 0, token as usize..token as usize + 1)?;
                made.extend(looked_up.into_iter().map(|x| x * scale as f32));
            }
            InputRow::Token(_) => {}
            InputRow::Embedding(elements) => made.extend_from_slice(elements),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::stretches;

    #[test]
    fn embeddings_next_to_one_another_are_one_copy() {
        let found = |rows: &str| stretches(rows.chars().map(|row| row == 'e'));
        assert_eq!(found("eeeete"), [0..4, 5..6]);
        assert_eq!(found("teetete"), [1..3, 4..5, 6..7]);
        assert!(found("tt").is_empty());
    }
}
