//! Logits after given tokens.

use crate::error::Error;
use crate::model::Model;
use crate::waiting::WaitCheck;
use latent_engine::LogitsRequest;
use latent_engine::cache::Sequence;

impl Model {
    /// The logits after the last of some tokens: one element per token of the vocabulary. The call
    /// waits until all earlier answers have ended.
    ///
    /// ```
    /// # let model = latent::Model::demo().context(64).load()?;
    /// let tokens = model.text().encode("Once upon a", true, false)?;
    /// let logits = model.logits(&tokens)?;
    /// assert_eq!(logits.len(), model.description().vocab_size);
    /// # Ok::<(), latent::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `tokens` is empty, does not fit into the context, or has ids out of range.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.logits_of(tokens, false, None)
    }

    /// The logits after each of some tokens: consecutive rows of the vocabulary's size.
    ///
    /// # Errors
    /// As for [`logits`](Self::logits).
    pub fn all_logits(&self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.logits_of(tokens, true, None)
    }

    /// Like [`logits`](Self::logits), or with `all` like [`all_logits`](Self::all_logits), while
    /// `go_on` returns true.
    ///
    /// # Errors
    /// As for [`logits`](Self::logits), and if `go_on` returns false.
    pub fn logits_while(&self, tokens: &[u32], all: bool, go_on: WaitCheck<'_>) -> Result<Vec<f32>, Error> {
        self.logits_of(tokens, all, Some(go_on))
    }

    fn logits_of(&self, tokens: &[u32], all: bool, go_on: Option<WaitCheck<'_>>) -> Result<Vec<f32>, Error> {
        // Checked before the engine is requested: that waits for all earlier answers.
        let context = self.inner.description.context;
        if tokens.is_empty() {
            return Err(Error::argument_named("tokens", "no tokens to compute logits of"));
        }
        if tokens.len() > context {
            let count = tokens.len();
            return Err(Error::new(
                crate::ErrorKind::TooLong { tokens: count, context },
                format!(
                    "{count} tokens do not fit into the context of {context}: load the model with a larger \
                     {}, or use fewer",
                    latent_types::Setting::Context
                ),
            ));
        }
        let tokens = tokens.to_owned();
        self.lend_engine(tokens.len(), go_on, move |engine, go_on| {
            let rows = if all { tokens.len() } else { 1 };
            let mut logits = Vec::with_capacity(rows * engine.config().vocab_size);
            let wanted = if all { LogitsRequest::All } else { LogitsRequest::Last };
            // A sequence of its own, whose rows are freed at the end.
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
