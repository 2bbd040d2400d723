//! Embeddings of texts.

use crate::error::Error;
use crate::model::Model;
use crate::waiting::WaitCheck;
use latent_engine::scheduler::{Job, JobEvent};
use latent_engine::{Pooling, Request};

impl Model {
    /// The embedding of each text: the mean of its last hidden states, normalized to length 1. The
    /// texts run in one batch.
    ///
    /// ```
    /// # let model = latent::Model::demo().context(64).load()?;
    /// let rows = model.embed(["a fox", "a lantern"])?;
    /// assert_eq!((rows.len(), rows[0].len()), (2, model.description().hidden_size));
    /// # Ok::<(), latent::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a text has no tokens or does not fit into the context (the message has its index), or the
    /// model cannot embed texts.
    pub fn embed(&self, texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Vec<f32>>, Error> {
        let texts = texts.into_iter().collect::<Vec<_>>();
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        self.embed_each(&texts, Pooling::Mean, None)
    }

    /// Like [`embed`](Self::embed) with another pooling, while `go_on` returns true. Without
    /// pooling, the row of a text has `hidden_size` elements for each of its tokens.
    ///
    /// # Errors
    /// As for [`embed`](Self::embed), and if `go_on` returns false.
    pub fn embed_while(
        &self,
        texts: &[&str],
        pooling: Pooling,
        go_on: WaitCheck<'_>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        self.embed_each(texts, pooling, Some(go_on))
    }

    fn embed_each(
        &self,
        texts: &[&str],
        pooling: Pooling,
        mut go_on: Option<WaitCheck<'_>>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let at = |index: usize| move |error: Error| error.prefixed(&format!("text {index}: "));
        // All texts are submitted before the first result is awaited, so that they share steps.
        let mut running = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let prompt = self.text().encode(text, true, false).map_err(at(index))?;
            let request = Request { prompt, ..Request::default() };
            // If a later text is refused, its predecessors are dropped, which cancels them.
            running.push(self.submit(Job { request, embed: true, pooling, ..Job::default() })?);
        }
        let mut rows = Vec::with_capacity(texts.len());
        for (index, events) in running.iter().enumerate() {
            loop {
                let event = match &mut go_on {
                    Some(go_on) => events.next_while(&mut **go_on),
                    None => events.next(),
                };
                match event.map_err(at(index))? {
                    JobEvent::Embedded { values, .. } => {
                        rows.push(values);
                        break;
                    }
                    JobEvent::Failed(error) => return Err(at(index)(error.into())),
                    // Only a cancelled job finishes without an embedding.
                    JobEvent::Finished { .. } => return Err(Error::cancelled()),
                    _ => {}
                }
            }
        }
        Ok(rows)
    }
}
