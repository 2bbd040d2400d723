//! Files of cached prefixes: the cached rows of a text, in the format of a saved sequence.
//!
//! The attachment of such a file names the tenant: the magic `LATNTPX1`, the salt (16 bytes), and
//! the cache id (`u64`), which identifies the model and all settings that rows depend on.

use super::Scheduler;
use crate::cache::{
    CacheFileError, CacheSalt, FileOwner, HashChain, KvCache, RestoredSequence, SavedLayers, Sequence,
};
use crate::error::EngineError;
use latent_backend::KV_BLOCK;
use std::path::Path;

const MAGIC: &[u8; 8] = b"LATNTPX1";

/// The path in errors about saved bytes that are not in a file.
const BYTES: &str = "(saved session)";

impl Scheduler {
    /// Writes the cached rows of the beginning of a text to a file. The file appears when it is
    /// complete. Returns the number of tokens in the file, or 0 if nothing is cached; no file is
    /// written then.
    ///
    /// # Errors
    /// When the file cannot be written, or the backend fails to read its memory.
    pub fn save_prefix(
        &mut self,
        salt: CacheSalt,
        tokens: &[u32],
        path: &Path,
    ) -> Result<usize, EngineError> {
        let saved = self.save_cached(salt, tokens, |cache, sequence, owner, attachment| {
            cache.save(sequence, owner, Some(attachment), SavedLayers::ModelAndMtp, path)?;
            Ok(sequence.len())
        });
        saved.map(Option::unwrap_or_default)
    }

    /// The bytes of the file that [`save_prefix`](Self::save_prefix) would write. Empty if nothing
    /// is cached.
    ///
    /// # Errors
    /// When the backend fails to read its memory.
    pub fn prefix_to_bytes(&mut self, salt: CacheSalt, tokens: &[u32]) -> Result<Vec<u8>, EngineError> {
        let saved = self.save_cached(salt, tokens, |cache, sequence, owner, attachment| {
            cache.save_bytes(sequence, owner, Some(attachment), SavedLayers::ModelAndMtp, Path::new(BYTES))
        });
        saved.map(Option::unwrap_or_default)
    }

    /// Saves the cached rows of the beginning of a text, with an attachment. `None` if nothing is
    /// cached.
    fn save_cached<T>(
        &mut self,
        salt: CacheSalt,
        tokens: &[u32],
        save: impl FnOnce(&KvCache, &Sequence, FileOwner, &[u8]) -> Result<T, CacheFileError>,
    ) -> Result<Option<T>, EngineError> {
        // `restore` counts all rows of the file as run by the MTP layer, so only such rows are
        // saved.
        let drafts = self.engine.drafts();
        let Some(sequence) = self.cached(salt, tokens, drafts) else { return Ok(None) };
        let attachment = self.attachment(salt);
        Ok(Some(save(&self.engine.cache, &sequence, self.engine.owner(), &attachment)?))
    }

    /// The cached rows of the beginning of a text. `drafts`: only those that the MTP layer has run
    /// too.
    fn cached(&mut self, salt: CacheSalt, tokens: &[u32], drafts: bool) -> Option<Sequence> {
        // A lookup never returns the row of the last token, since a prompt needs its logits. The
        // file needs that row too, so one more token is looked up.
        let longer = [tokens, &[0]].concat();
        let chain = self.chain(salt, &longer);
        // Blocks on disk belong to the text too. No job waits for this read, so it has no limit.
        self.prefixes.load(&mut self.engine.cache, &chain, &longer, usize::MAX);
        self.prefixes.adopt(&chain, &longer, drafts).map(|(sequence, _)| sequence)
    }

    /// Writes the cached rows of the beginning of a text to a file of
    /// [`Engine::save_session`](crate::Engine::save_session), with an attachment. A file without
    /// rows is written if nothing is cached. Returns the number of tokens in the file.
    ///
    /// # Errors
    /// When the file cannot be written, or the backend fails to read its memory.
    pub fn save_session(
        &mut self,
        salt: CacheSalt,
        tokens: &[u32],
        attachment: Option<&[u8]>,
        path: &Path,
    ) -> Result<usize, EngineError> {
        let sequence = self.cached(salt, tokens, false).unwrap_or_default();
        self.engine.cache.save(&sequence, self.engine.owner(), attachment, SavedLayers::Model, path)?;
        Ok(sequence.len())
    }

    /// Reads a file of [`save_session`](Self::save_session) or
    /// [`Engine::save_session`](crate::Engine::save_session) into the prefix cache, for jobs of
    /// this salt. Evicts the least recently used prefixes if it does not fit. Returns the tokens of
    /// the file, and its attachment if it has one.
    ///
    /// # Errors
    /// [`EngineError::CacheFile`] for a file that is damaged, belongs to another model or cache
    /// type, or does not fit.
    pub fn restore_session(
        &mut self,
        salt: CacheSalt,
        path: &Path,
    ) -> Result<(Vec<u32>, Option<Vec<u8>>), EngineError> {
        let (sequence, attachment) =
            self.read_sequence(|cache, owner| cache.restore(path, owner, SavedLayers::Model))?;
        Ok((self.keep_sequence(salt, &sequence), attachment))
    }

    /// Reads a file of [`save_prefix`](Self::save_prefix) into the prefix cache, for jobs of the
    /// same salt. Evicts the least recently used prefixes if it does not fit. Returns the tokens of
    /// the file.
    ///
    /// # Errors
    /// [`EngineError::CacheFile`] for a file that is damaged, belongs to another model, cache type
    /// or salt, or does not fit.
    pub fn restore_prefix(&mut self, salt: CacheSalt, path: &Path) -> Result<Vec<u32>, EngineError> {
        self.restore_cached(salt, path, |cache, owner| cache.restore(path, owner, SavedLayers::ModelAndMtp))
    }

    /// Like [`restore_prefix`](Self::restore_prefix), for the bytes of
    /// [`prefix_to_bytes`](Self::prefix_to_bytes).
    ///
    /// # Errors
    /// As for [`restore_prefix`](Self::restore_prefix).
    pub fn prefix_from_bytes(&mut self, salt: CacheSalt, bytes: &[u8]) -> Result<Vec<u32>, EngineError> {
        let path = Path::new(BYTES);
        self.restore_cached(salt, path, |cache, owner| {
            cache.restore_from((bytes, bytes.len() as u64), path, owner, SavedLayers::ModelAndMtp)
        })
    }

    fn restore_cached(
        &mut self,
        salt: CacheSalt,
        path: &Path,
        restore: impl Fn(&mut KvCache, FileOwner) -> Result<RestoredSequence, CacheFileError>,
    ) -> Result<Vec<u32>, EngineError> {
        let (sequence, attachment) = self.read_sequence(restore)?;
        self.check_attachment(salt, attachment.as_deref(), path)?;
        Ok(self.keep_sequence(salt, &sequence))
    }

    /// Reads a saved sequence, for which prefixes are evicted if necessary.
    fn read_sequence(
        &mut self,
        restore: impl Fn(&mut KvCache, FileOwner) -> Result<RestoredSequence, CacheFileError>,
    ) -> Result<RestoredSequence, CacheFileError> {
        let owner = self.engine.owner();
        // The number of rows is known only once the header is read, so prefixes are evicted after
        // the first attempt has failed.
        let mut restored = restore(&mut self.engine.cache, owner);
        if let Err(CacheFileError::Full { .. } | CacheFileError::StatesFull { .. }) = restored {
            if let Err(CacheFileError::Full { full, .. }) = &restored {
                self.free_blocks(full.rows);
            }
            self.prefixes.evict_states(1);
            restored = restore(&mut self.engine.cache, owner);
        }
        restored
    }

    /// Caches the rows of a restored sequence. Returns its tokens.
    fn keep_sequence(&mut self, salt: CacheSalt, sequence: &Sequence) -> Vec<u32> {
        let chain = self.chain(salt, sequence.tokens());
        self.prefixes.insert(&chain, sequence, true);
        sequence.tokens().to_vec()
    }

    /// Evicts the cached rows of a text from memory, except those that other cached texts share.
    /// Returns the number of evicted tokens.
    pub fn forget_prefix(&mut self, salt: CacheSalt, tokens: &[u32]) -> usize {
        let chain = self.chain(salt, tokens);
        self.prefixes.forget(&chain, tokens)
    }

    fn chain(&self, salt: CacheSalt, tokens: &[u32]) -> HashChain {
        let mut chain = HashChain::new(self.cache_id, salt);
        chain.extend_to(tokens);
        chain
    }

    /// Evicts prefixes until `rows` rows fit.
    fn free_blocks(&mut self, rows: usize) {
        let wanted = rows.div_ceil(KV_BLOCK);
        let cache = &self.engine.cache;
        // If the rows cannot fit, do not empty the cache in vain.
        if wanted > cache.free_blocks() + cache.idle_blocks() {
            return;
        }
        while self.engine.cache.free_blocks() < wanted && self.prefixes.evict(false) {}
    }

    fn attachment(&self, salt: CacheSalt) -> Vec<u8> {
        [&MAGIC[..], &salt.0, &self.cache_id.to_le_bytes()].concat()
    }

    fn check_attachment(
        &self,
        salt: CacheSalt,
        found: Option<&[u8]>,
        path: &Path,
    ) -> Result<(), CacheFileError> {
        let expected = self.attachment(salt);
        let damaged =
            |problem: &str| CacheFileError::Damaged { path: path.to_owned(), problem: problem.into() };
        let Some(found) = found.filter(|found| found.len() == expected.len() && found.starts_with(MAGIC))
        else {
            return Err(damaged("it contains a conversation, not a cached prompt of a server"));
        };
        let (owner, settings) = (MAGIC.len()..MAGIC.len() + salt.0.len(), MAGIC.len() + salt.0.len()..);
        if found[owner.clone()] != expected[owner] {
            let (found, expected) = ("that of another client".into(), "its own".into());
            return Err(CacheFileError::Mismatch { path: path.to_owned(), what: "key", found, expected });
        }
        if found[settings.clone()] != expected[settings.clone()] {
            let id = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (found, expected) = (id(&found[settings.clone()]), id(&expected[settings]));
            let what = "precision, context or device";
            return Err(CacheFileError::Mismatch { path: path.to_owned(), what, found, expected });
        }
        Ok(())
    }
}
