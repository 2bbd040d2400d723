//! Operations on sequences besides running them: truncate, snapshot, share, shift, save.

use crate::cache::{FileOwner, SavedLayers, Sequence};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;
use latent_backend::AdapterScales;
use std::ops::Range;
use std::path::Path;

impl Engine {
    fn owned(&self, sequence: &Sequence) -> Result<(), EngineError> {
        if self.cache.owns(sequence) { Ok(()) } else { Err(EngineError::ForeignSequence) }
    }

    /// Releases the blocks and states of a sequence, as dropping it does.
    pub fn release(&mut self, sequence: Sequence) {
        drop(sequence);
    }

    /// Discards all rows of a sequence from `len` on. A recurrent state cannot be truncated: in a
    /// model with recurrent layers, the sequence returns to the newest [snapshot](Self::snapshot)
    /// at or before `len`, or to its beginning. Returns the new length. Tokens between it and `len`
    /// must run again.
    #[must_use = "tokens from this position on must run again"]
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) -> usize {
        sequence.truncate(len)
    }

    /// A sequence that shares the first `len` rows of another. In a model with recurrent layers, it
    /// shares the rows before the newest snapshot, as for [`truncate`](Self::truncate).
    /// [`Sequence::len`] is their number.
    pub fn share(&mut self, other: &Sequence, len: usize) -> Sequence {
        other.share(len)
    }

    /// Sets the scales of the model's adapters for a sequence, one per adapter in the order in
    /// which they were given. `None`: those that the model was loaded with. If the scales change,
    /// the rows of the sequence are discarded.
    ///
    /// # Errors
    /// [`EngineError::Options`] if the number of scales is not the number of adapters, or a scale
    /// is not finite.
    pub fn set_adapter_scales(
        &mut self,
        sequence: &mut Sequence,
        scales: Option<&AdapterScales>,
    ) -> Result<(), EngineError> {
        self.check_adapter_scales(scales)?;
        // Rows depend on the scales.
        if sequence.adapter_scales() != scales {
            sequence.truncate(0);
            sequence.set_adapter_scales(scales);
        }
        Ok(())
    }

    pub(crate) fn check_adapter_scales(&self, scales: Option<&AdapterScales>) -> Result<(), EngineError> {
        let Some(scales) = scales.map(AdapterScales::as_slice) else { return Ok(()) };
        let (given, adapters) = (scales.len(), self.adapters.len());
        // A NaN or infinite scale would make every logit NaN.
        let problem = match scales.iter().find(|scale| !scale.is_finite()) {
            _ if given != adapters => {
                format!("{given} adapter scales were given, but the model has {adapters} adapters")
            }
            Some(scale) => format!("an adapter's scale is {scale}: expected a finite number"),
            None => return Ok(()),
        };
        Err(EngineError::Options(problem))
    }

    /// Keeps the current recurrent state of a sequence, for example at the end of a message, so
    /// that [`truncate`](Self::truncate) and [`share`](Self::share) can return to it. Nothing is
    /// copied. Steps also take snapshots automatically, up to the limit of
    /// [`StateOptions`](crate::cache::StateOptions). Without effect on models without recurrent
    /// layers.
    ///
    /// # Errors
    /// When another engine has run the sequence.
    pub fn snapshot(&mut self, sequence: &mut Sequence) -> Result<(), EngineError> {
        let here = sequence.len();
        self.snapshot_at(sequence, here)
    }

    /// Requests a snapshot after `position` rows. It is taken now if the sequence has exactly as
    /// many rows, otherwise by the step that passes this position. Positions that have passed are
    /// ignored.
    ///
    /// # Errors
    /// As for [`snapshot`](Self::snapshot).
    pub fn snapshot_at(&mut self, sequence: &mut Sequence, position: usize) -> Result<(), EngineError> {
        self.owned(sequence)?;
        self.cache.snapshot_at(sequence, position);
        Ok(())
    }

    /// Discards a range of rows and moves the later ones down.
    ///
    /// # Errors
    /// [`EngineError::Stretch`] for a range that is reversed or ends after the last row.
    /// [`EngineError::NoContextShift`] for a model with recurrent layers. Also if a shared block
    /// must be copied and no block is free, or another engine has run the sequence.
    pub fn shift(&mut self, sequence: &mut Sequence, forgotten: Range<usize>) -> Result<(), EngineError> {
        self.owned(sequence)?;
        if forgotten.start > forgotten.end || forgotten.end > sequence.len() {
            return Err(EngineError::Stretch { stretch: forgotten, rows: sequence.len() });
        }
        if self.cache.layout().is_recurrent() {
            return Err(EngineError::NoContextShift);
        }
        Ok(self.cache.shift(sequence, forgotten)?)
    }

    /// Saves a sequence and its [tokens](Sequence::tokens).
    ///
    /// # Errors
    /// When the file cannot be written, some rows were embeddings or were moved by a context shift,
    /// or another engine has run the sequence.
    pub fn save(&self, sequence: &Sequence, path: &Path) -> Result<(), EngineError> {
        self.owned(sequence)?;
        Ok(self.cache.save(sequence, self.owner(), None, SavedLayers::Model, path)?)
    }

    /// Reads a saved sequence back.
    ///
    /// # Errors
    /// When the file is damaged, belongs to another model, has tokens outside the vocabulary, or
    /// does not fit.
    pub fn restore(&mut self, path: &Path) -> Result<(Sequence, Vec<u32>), EngineError> {
        let (sequence, _) = self.cache.restore(path, self.owner(), SavedLayers::Model)?;
        let tokens = sequence.tokens().to_vec();
        Ok((sequence, tokens))
    }

    /// Identifies this model in saved sequences.
    pub(crate) fn owner(&self) -> FileOwner {
        FileOwner { fingerprint: self.fingerprint, vocab: self.config().vocab_size }
    }

    /// Saves a session with an attachment, such as the conversation that its tokens were rendered
    /// from. Rows that a context shift has moved are dropped first. Returns the number of tokens in
    /// the file.
    ///
    /// # Errors
    /// When the file cannot be written, some rows were embeddings, or another engine has run the
    /// sequence.
    pub fn save_session(
        &mut self,
        session: &mut Session,
        attachment: Option<&[u8]>,
        path: &Path,
    ) -> Result<usize, EngineError> {
        self.owned(&session.sequence)?;
        // Rows of embeddings are an error, which `save` returns. They must not be dropped silently.
        if session.sequence.embedded_from().is_none() {
            let known = session.tokens().len();
            session.sequence.truncate(known);
        }
        self.cache.save(&session.sequence, self.owner(), attachment, SavedLayers::Model, path)?;
        Ok(session.sequence.len())
    }

    /// Reads a saved session back, with its attachment if it has one.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub fn restore_session(&mut self, path: &Path) -> Result<(Session, Option<Vec<u8>>), EngineError> {
        let (sequence, attachment) = self.cache.restore(path, self.owner(), SavedLayers::Model)?;
        Ok((sequence.into(), attachment))
    }
}
