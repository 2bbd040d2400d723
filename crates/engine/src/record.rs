//! Recording the activations of a run.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::available;
use crate::step::{LogitsRequest, SeqInput};
use latent_backend::{ActivationTrace, InputProducts, InputSelection, InputSquares};
use latent_graph::activations::Activations;
use latent_types::{Setting, format_bytes};
use std::collections::HashSet;
use std::ops::Range;

impl Engine {
    /// Runs `tokens` as a new sequence, and copies activations after the phases that compute them:
    /// those of `layers`, those outside of layers, the residual stream and routing. The results are
    /// the same as those of an ordinary run, bit for bit.
    ///
    /// # Errors
    /// As for [`prefill`](Self::prefill). Also if memory is too small for the copies.
    pub fn trace(
        &mut self,
        activations: &Activations,
        layers: Range<usize>,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<ActivationTrace, EngineError> {
        check_memory(ActivationTrace::bytes(activations, &layers, tokens.len()))?;
        self.model.start_trace(activations, ActivationTrace::new(activations, layers, tokens))?;
        let mut sequence = Sequence::default();
        let chunk = self.chunk_for(tokens.len());
        let done = self.prefill(&mut sequence, tokens, chunk, LogitsRequest::All, &mut |_, _| {}, progress);
        // Recording ends before an error is returned: later runs must not be recorded.
        let trace = self.model.stop_trace();
        done?;
        let mut trace = trace.unwrap_or_default();
        trace.derive_terms(activations);
        Ok(trace)
    }
}

/// The experts that the router of one MoE layer selected in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRouting {
    /// Index of the layer.
    pub layer: usize,
    /// Per row of the step, the selected experts in ascending order.
    pub rows: Vec<Vec<usize>>,
}

impl LayerRouting {
    /// Number of experts that were selected for at least one row. The step reads the weights of
    /// these.
    pub fn distinct(&self) -> usize {
        self.rows.iter().flatten().collect::<HashSet<_>>().len()
    }
}

impl Engine {
    /// Runs `tokens` as one step that continues `sequence`, and returns the selected experts of
    /// each MoE layer. Empty for a model without MoE layers. Logits and sequence are the same as
    /// after an ordinary step, bit for bit.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn trace_routing(
        &mut self,
        activations: &Activations,
        sequence: &mut Sequence,
        tokens: &[u32],
    ) -> Result<Vec<LayerRouting>, EngineError> {
        self.model.start_trace(activations, ActivationTrace::routing(activations, sequence.len(), tokens))?;
        let mut inputs = [SeqInput::tokens(sequence, tokens, LogitsRequest::All)];
        let done = self.step(&mut inputs, &mut |_, _, _| {}).and_then(|outcome| outcome.all());
        // As in `trace`, recording ends before an error is returned.
        let trace = self.model.stop_trace().unwrap_or_default();
        done?;
        let points = activations.list().iter().enumerate();
        let routing = points.filter_map(|(at, point)| {
            let (layer, values) = (point.layer?, trace.values(at)?);
            // The activation has a routing weight per expert, which is 0 for experts that were not
            // selected.
            let chosen = |row| -> Vec<usize> {
                let weights = values.row(row).unwrap_or_default().iter().enumerate();
                weights.filter(|(_, weight)| **weight != 0.0).map(|(expert, _)| expert).collect()
            };
            Some(LayerRouting { layer, rows: (0..tokens.len()).map(chosen).collect() })
        });
        Ok(routing.collect())
    }
}

impl Engine {
    /// Runs each of `texts` as a new sequence, and sums the squared inputs of every weight matrix,
    /// column by column (an importance matrix). Returns the sums by the name of the weight's first
    /// tensor. An engine that drafts also runs its MTP layer, with its head, over all rows but the
    /// last of each text. `progress` is called with the number of finished texts, and returns
    /// whether to continue.
    ///
    /// # Errors
    /// As for [`prefill`](Self::prefill). Also if the backend does not support it.
    pub fn input_squares(
        &mut self,
        texts: &[&[u32]],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<(String, InputSquares)>, EngineError> {
        self.model.start_input_squares()?;
        let done = self.run_texts(texts, progress);
        // Collecting ends before an error is returned: later steps must not be counted.
        let sums = self.model.stop_input_squares();
        done.map(|()| sums)
    }

    /// Runs the texts as [`input_squares`](Self::input_squares) does, and sums Σ x·xᵀ over the
    /// inputs x of the selected weight matrices.
    ///
    /// # Errors
    /// As for [`input_squares`](Self::input_squares).
    pub fn input_products(
        &mut self,
        texts: &[&[u32]],
        selections: &[InputSelection],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<InputProducts>, EngineError> {
        self.model.start_input_products(selections)?;
        let done = self.run_texts(texts, progress);
        let products = self.model.stop_input_products();
        done.map(|()| products)
    }

    /// Runs each text as a new sequence.
    fn run_texts(
        &mut self,
        texts: &[&[u32]],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        // The head of the MTP layer runs only over rows whose logits are wanted, and its inputs are
        // summed over all rows.
        self.all_draft_logits = true;
        let mut done = Ok(());
        for (number, tokens) in texts.iter().enumerate() {
            let mut sequence = Sequence::default();
            let chunk = self.chunk_for(tokens.len());
            let mut go_on = |_| progress(number);
            done = self.prefill(&mut sequence, tokens, chunk, LogitsRequest::All, &mut |_, _| {}, &mut go_on);
            // Not returned here: `all_draft_logits` must be reset first.
            if done.is_err() {
                break;
            }
        }
        self.all_draft_logits = false;
        done
    }
}

/// Checks that recorded activations take at most half of the free memory. The rest is needed for
/// the caller's own copies.
fn check_memory(bytes: u64) -> Result<(), EngineError> {
    match available() {
        Some(available) if bytes > available.bytes / 2 => Err(EngineError::Options(format!(
            "copying these values takes {}, more than half of the {} of free memory: use fewer tokens, or \
             fewer layers ({})",
            format_bytes(bytes),
            format_bytes(available.bytes),
            Setting::Layers
        ))),
        _ => Ok(()),
    }
}
