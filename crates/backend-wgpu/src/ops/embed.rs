//! Embedding lookup: on the device, or on the host if the device has no room for the table.

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

/// Rows that the host has uploaded.
struct UploadedRows(ShaderOperand);

impl UploadedRows {
    /// Copies uploaded rows, from the `first` one on, to these rows of the batch.
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

/// Looks up rows in a table on the device, and multiplies them by the model's embedding scale.
struct TableLookup {
    table: Arc<DeviceWeight>,
    scale: Option<Elementwise>,
    /// Rows given as embeddings instead of tokens.
    uploaded: UploadedRows,
}

impl GpuOperation for TableLookup {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let y = &self.uploaded.0;
        let place = RowAddress { binding: run.bind(y), address: y.address() };
        let tokens = (&run.step_buffer.into(), run.step.tokens);
        gather(run.commands, &self.table, tokens, run.rows, &place)?;
        self.scale.iter().try_for_each(|scale| scale.record(run, path))?;
        // After the scale, which embeddings already contain. The host uploads them without gaps.
        let batch = run.batch;
        let mut copied = 0;
        for rows in stretches((0..run.rows).map(|row| matches!(batch.input(row), InputRow::Embedding(_)))) {
            self.uploaded.copy(run, copied, rows.clone());
            copied += rows.len();
        }
        Ok(())
    }
}

/// The ranges of consecutive rows that are true.
fn stretches(rows: impl Iterator<Item = bool>) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (row, _) in rows.enumerate().filter(|(_, is_true)| *is_true) {
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
    Ok(Box::new(TableLookup { table, scale, uploaded: UploadedRows(y) }))
}

/// The elements of a batch that the host uploads: rows that are embeddings, and, if `looks_up` is
/// set, rows of tokens multiplied by the model's embedding scale.
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
            // The device looks up these rows.
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
    fn consecutive_embeddings_are_one_copy() {
        let found = |rows: &str| stretches(rows.chars().map(|row| row == 'e'));
        assert_eq!(found("eeeete"), [0..4, 5..6]);
        assert_eq!(found("teetete"), [1..3, 4..5, 6..7]);
        assert!(found("tt").is_empty());
    }
}
