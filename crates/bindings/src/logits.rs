//! Logits of tokens.

use crate::error::Error;
use crate::model::ModelHandle;
use crate::waiting::WaitCheck;
use latent_engine::LogitsRequest;
use latent_engine::cache::Sequence;

impl ModelHandle {
    /// The logits after the last of some tokens, or after each of them with `all`: rows of the vocabulary's size, one after the other.
    ///
    /// # Errors
    /// Tokens that are none, out of range, or more than the context holds; the caller does not wait any longer.
    pub fn logits(&self, tokens: Vec<u32>, all: bool, go_on: WaitCheck<'_>) -> Result<Vec<f32>, Error> {
        let context = self.inner.description.context;
        if tokens.is_empty() {
            return Err(Error::argument("no tokens to compute logits of"));
        }
        if tokens.len() > context {
            let count = tokens.len();
            return Err(Error::new(
                crate::ErrorKind::TooLong,
                format!(
                    "{count} tokens do not fit into the context of {context}: load the model with a larger ctx_size, or give fewer"
                ),
            ));
        }
        self.with_engine(tokens.len(), go_on, move |engine, go_on| {
            let rows = if all { tokens.len() } else { 1 };
            let mut logits = Vec::with_capacity(rows * engine.config().vocab_size);
            let wanted = if all { LogitsRequest::All } else { LogitsRequest::Last };
            let (mut sequence, chunk) = (Sequence::default(), engine.chunk_for(tokens.len()));
            engine.prefill(
                &mut sequence,
                &tokens,
                chunk,
                wanted,
                &mut |_, row| logits.extend_from_slice(row),
                &mut |_| go_on(),
            )?;
            Ok(logits)
        })
    }
}
