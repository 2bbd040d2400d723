//! Recording the activations of a run.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::available;
use crate::step::LogitsRequest;
use latent_backend::Trace;
use latent_graph::activations::Activations;
use latent_types::format_bytes;
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
    ) -> Result<Trace, EngineError> {
        check_memory(Trace::bytes(activations, &layers, tokens.len()))?;
        self.model.start_trace(activations, Trace::new(activations, layers, tokens))?;
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

/// Refuses to record activations that would take more than half of the free memory.
fn check_memory(bytes: u64) -> Result<(), EngineError> {
    match available() {
        Some(available) if bytes > available.bytes / 2 => Err(EngineError::Options(format!(
            "copying these values takes {}, more than half of the {} of memory that is free: give fewer tokens, or fewer layers with \
             --layers A..B",
            format_bytes(bytes),
            format_bytes(available.bytes)
        ))),
        _ => Ok(()),
    }
}
