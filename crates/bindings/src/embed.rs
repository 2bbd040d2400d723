//! Embeddings of texts.

use crate::error::Error;
use crate::model::ModelHandle;
use crate::waiting::WaitCheck;
use latent_engine::Request;
use latent_engine::scheduler::{Job, JobEvent};

impl ModelHandle {
    /// The embeddings of texts: of each the mean of its last hidden states, of length 1; rows of the hidden size, one after the other. They share
    /// steps.
    ///
    /// # Errors
    /// A text without tokens, or with more than the context holds, named by its place; a model whose final norm cannot be read.
    pub fn embed(&self, texts: &[String], go_on: WaitCheck<'_>) -> Result<Vec<f32>, Error> {
        let at =
            |at: usize, error: Error| Error { message: format!("text {at}: {}", error.message), ..error };
        let mut listening = Vec::with_capacity(texts.len());
        for (place, text) in texts.iter().enumerate() {
            let prompt = self.encode(text, true, false).map_err(|error| at(place, error))?;
            let request = Request { prompt, ..Request::default() };
            listening.push(self.submit(Job { request, embed: true, ..Job::default() })?);
        }
        let mut values = Vec::with_capacity(texts.len() * self.inner.description.hidden_size);
        for (place, listening) in listening.iter().enumerate() {
            loop {
                match listening.next(go_on).map_err(|error| at(place, error))? {
                    JobEvent::Embedded { values: row, .. } => {
                        values.extend_from_slice(&row);
                        break;
                    }
                    JobEvent::Failed(error) => return Err(at(place, error.into())),
                    _ => {}
                }
            }
        }
        Ok(values)
    }
}
