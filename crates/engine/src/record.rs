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
    /// Runs `tokens` as a sequence of their own and copies the activations of `layers` (those outside of layers, the residual stream and
    /// routing too) out of every phase that makes one. It computes what an ordinary run computes, bit for bit.
    ///
    /// # Errors
    /// As for [`prefill`](Self::prefill); too little memory for what is to be copied.
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
        let trace = self.model.stop_trace();
        done?;
        let mut trace = trace.unwrap_or_default();
        trace.derive_terms(activations);
        Ok(trace)
    }
}

/// The experts that the rows of a step chose in one MoE layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRouting {
    /// The layer.
    pub layer: usize,
    /// Per row of the step, the experts that it chose, ascending.
    pub rows: Vec<Vec<usize>>,
}

impl LayerRouting {
    /// Number of experts that at least one row chose: those whose weights the step reads.
    pub fn distinct(&self) -> usize {
        self.rows.iter().flatten().collect::<HashSet<_>>().len()
    }
}

impl Engine {
    /// Runs `tokens` as one step that continues `sequence`, and returns the experts that its rows chose in each MoE layer; none of a model
    /// without a router. It computes what an ordinary step computes, bit for bit, and the sequence is as after one.
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
        let trace = self.model.stop_trace().unwrap_or_default();
        done?;
        let points = activations.list().iter().enumerate();
        let routing = points.filter_map(|(at, point)| {
            let (layer, values) = (point.layer?, trace.values(at)?);
            // a row has a weight for each expert, 0 for those that it did not choose
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
    /// Runs each of `texts` as a sequence of its own, and sums the squares of what every weight is multiplied by, column by column: the sums by the
    /// name of the weight's first tensor. An engine that drafts runs its MTP layer, with its head, over all rows but each text's last. `progress` gets
    /// the number of texts that are done, and says whether to go on.
    ///
    /// # Errors
    /// As for [`prefill`](Self::prefill); a backend that does not sum them up.
    pub fn input_squares(
        &mut self,
        texts: &[&[u32]],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<(String, InputSquares)>, EngineError> {
        self.model.start_input_squares()?;
        let done = self.run_texts(texts, progress);
        let sums = self.model.stop_input_squares();
        done.map(|()| sums)
    }

    /// Runs the texts as [`input_squares`](Self::input_squares) does, and sums the products of what the selected matrices of weights are multiplied by.
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

    /// Runs each text as a sequence of its own.
    fn run_texts(
        &mut self,
        texts: &[&[u32]],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.all_draft_logits = true;
        let mut done = Ok(());
        for (number, tokens) in texts.iter().enumerate() {
            let mut sequence = Sequence::default();
            let chunk = self.chunk_for(tokens.len());
            let mut go_on = |_| progress(number);
            done = self.prefill(&mut sequence, tokens, chunk, LogitsRequest::All, &mut |_, _| {}, &mut go_on);
            if done.is_err() {
                break;
            }
        }
        self.all_draft_logits = false;
        done
    }
}

/// Refuses to record activations that would take more than half of the free memory.
fn check_memory(bytes: u64) -> Result<(), EngineError> {
    match available() {
        Some(available) if bytes > available.bytes / 2 => Err(EngineError::Options(format!(
            "copying these values takes {}, more than half of the {} of memory that is free: give fewer tokens, or fewer layers \
             ({})",
            format_bytes(bytes),
            format_bytes(available.bytes),
            Setting::Layers
        ))),
        _ => Ok(()),
    }
}
