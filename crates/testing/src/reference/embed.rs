//! What the first layer reads: rows of the embedding, and the toy recurrences that they pass through.

use super::interpret::{Interpreter, internal};
use latent_backend::BackendError;
use latent_graph::ir::Node;
use std::sync::atomic::Ordering;

impl Interpreter<'_> {
    /// Rows of the embedding.
    pub(super) fn embed(&mut self, node: &Node, scale: f64) -> Result<(), BackendError> {
        let weight = self.ir().weight(node.weights[0].1);
        let mut made = Vec::new();
        for token in &self.batch.tokens {
            made.extend(self.weights.rows(weight, 0, *token as usize..*token as usize + 1)?);
        }
        made.iter_mut().for_each(|x| *x *= scale as f32);
        self.recur(&mut made)?;
        self.set(node, 0, made);
        Ok(())
    }

    /// Applies every toy recurrence to the rows `h`, and writes the states that the batch asks for.
    fn recur(&mut self, h: &mut [f32]) -> Result<(), BackendError> {
        let width = self.config.hidden_size;
        let first = self.kv.first_recurrent();
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
            if op.fails.load(Ordering::Relaxed) {
                return Err(BackendError::Unsupported("the toy recurrence was told to fail".into()));
            }
        }
        Ok(())
    }
}
