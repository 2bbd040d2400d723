//! Inputs of the first layer: rows of the embedding, to which toy recurrences are applied.

use crate::interpret::{Interpreter, internal};
use latent_backend::{BackendError, InputRow};
use latent_graph::ir::Node;
use std::sync::atomic::Ordering;

impl Interpreter<'_> {
    /// Rows of the embedding table, and rows that the batch has instead of tokens, which are not
    /// scaled.
    pub(super) fn embed(&mut self, node: &Node, scale: f64) -> Result<(), BackendError> {
        let weight = self.ir().weight(node.weights[0].1);
        let mut made = Vec::new();
        for row in 0..self.batch.rows() {
            match self.batch.input(row) {
                InputRow::Token(token) => {
                    let looked_up = self.weights.rows(weight, 0, token as usize..token as usize + 1)?;
                    made.extend(looked_up.into_iter().map(|x| x * scale as f32));
                }
                // Embeddings enter after the factor that some models apply to rows of the table.
                InputRow::Embedding(elements) => made.extend_from_slice(elements),
            }
        }
        self.recur(&mut made)?;
        self.set(node, 0, made);
        Ok(())
    }

    /// Applies every toy recurrence to the rows `h`, and writes the states that the batch names.
    fn recur(&mut self, h: &mut [f32]) -> Result<(), BackendError> {
        let width = self.config.hidden_size;
        // The states of the recurrences follow the layers of the plans.
        let first = self.kv.last_layers(self.recurrences.len());
        for (op, layer) in self.recurrences.iter().zip(first..) {
            for span in &self.batch.spans {
                let Some(slots) = &span.state else { return internal("a span without state".into()) };
                let mut state =
                    slots.from.map_or_else(|| vec![0.0; width], |slot| self.kv.state(layer, slot).to_vec());
                for (done, row) in span.rows.clone().enumerate() {
                    op.advance(&mut state, &mut h[row * width..(row + 1) * width]);
                    for (_, slot) in slots.kept.iter().filter(|(rows, _)| *rows == done + 1) {
                        self.kv.state_mut(layer, *slot).copy_from_slice(&state);
                    }
                }
                self.kv.state_mut(layer, slots.to).copy_from_slice(&state);
            }
            // Fails after the states are written: the worst case for an engine, which must not use
            // the states of a failed step.
            if op.fails.load(Ordering::Relaxed) {
                return Err(BackendError::Unsupported("the toy recurrence was told to fail".into()));
            }
        }
        Ok(())
    }
}
