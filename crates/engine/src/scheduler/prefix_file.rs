//! Cached texts in files: the rows that the prefix cache has of a text, in the form of a saved sequence.
//!
//! The attachment of such a file says who may use the rows: the magic `LATNTPX1`, the salt of their jobs (16 bytes), and the id of the cache (`u64`),
//! which depends on the settings that decide what rows hold.

use super::Scheduler;
use crate::cache::{
    CacheFileError, CacheSalt, FileOwner, HashChain, KvCache, RestoredSequence, SavedLayers, Sequence,
};
use crate::error::EngineError;
use latent_backend::KV_BLOCK;
use std::path::Path;

const MAGIC: &[u8; 8] = b"LATNTPX1";

/// What errors call saved bytes that are in no file.
const BYTES: &str = "(saved session)";

impl Scheduler {
    /// Writes what is cached of the beginning of a text to a file, which appears when it is whole. Returns the number of tokens in the file; 0
    /// where nothing is cached, and no file is written.
    ///
    /// # Errors
    /// When the file cannot be written, or the backend's memory fails.
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

    /// The bytes of such a file; empty where nothing is cached.
    ///
    /// # Errors
    /// When the backend's memory fails.
    pub fn prefix_to_bytes(&mut self, salt: CacheSalt, tokens: &[u32]) -> Result<Vec<u8>, EngineError> {
        let saved = self.save_cached(salt, tokens, |cache, sequence, owner, attachment| {
            cache.save_bytes(sequence, owner, Some(attachment), SavedLayers::ModelAndMtp, Path::new(BYTES))
        });
        saved.map(Option::unwrap_or_default)
    }

    /// Saves what is cached of the beginning of a text, with an attachment; none where nothing is.
    fn save_cached<T>(
        &mut self,
        salt: CacheSalt,
        tokens: &[u32],
        save: impl FnOnce(&KvCache, &Sequence, FileOwner, &[u8]) -> Result<T, CacheFileError>,
    ) -> Result<Option<T>, EngineError> {
        // a prompt never takes the row of its last token, which is wanted here too
        let longer = [tokens, &[0]].concat();
        let chain = self.chain(salt, &longer);
        self.prefixes.load(&mut self.engine.cache, &chain, &longer, usize::MAX);
        let drafts = self.engine.drafts();
        let Some((sequence, _)) = self.prefixes.adopt(&chain, &longer, drafts) else { return Ok(None) };
        let attachment = self.attachment(salt);
        Ok(Some(save(&self.engine.cache, &sequence, self.engine.owner(), &attachment)?))
    }

    /// Reads a file of [`save_prefix`](Self::save_prefix) into the prefix cache, for jobs of the same salt. Cached prefixes that were not used for
    /// the longest time make room. Returns the tokens of the file.
    ///
    /// # Errors
    /// [`EngineError::CacheFile`] for a file that is damaged, belongs to another model, cache type or salt, or does not fit.
    pub fn restore_prefix(&mut self, salt: CacheSalt, path: &Path) -> Result<Vec<u32>, EngineError> {
        self.restore_cached(salt, path, |cache, owner| cache.restore(path, owner, SavedLayers::ModelAndMtp))
    }

    /// The same for the bytes of [`prefix_to_bytes`](Self::prefix_to_bytes).
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
        let owner = self.engine.owner();
        let mut restored = restore(&mut self.engine.cache, owner);
        if let Err(CacheFileError::Full { .. } | CacheFileError::StatesFull { .. }) = restored {
            if let Err(CacheFileError::Full { full, .. }) = &restored {
                self.free_blocks(full.rows);
            }
            self.prefixes.evict_states(1);
            restored = restore(&mut self.engine.cache, owner);
        }
        let (sequence, attachment) = restored?;
        self.check_attachment(salt, attachment.as_deref(), path)?;
        let chain = self.chain(salt, sequence.tokens());
        self.prefixes.insert(&chain, &sequence, true);
        Ok(sequence.tokens().to_vec())
    }

    /// Forgets what is cached in memory of a text, except what other cached texts begin with. Returns how many tokens that was.
    pub fn forget_prefix(&mut self, salt: CacheSalt, tokens: &[u32]) -> usize {
        let chain = self.chain(salt, tokens);
        self.prefixes.forget(&chain, tokens)
    }

    fn chain(&self, salt: CacheSalt, tokens: &[u32]) -> HashChain {
        let mut chain = HashChain::new(self.cache_id, salt);
        chain.extend_to(tokens);
        chain
    }

    /// Evicts prefixes until this many rows fit, if they can.
    fn free_blocks(&mut self, rows: usize) {
        let wanted = rows.div_ceil(KV_BLOCK);
        let cache = &self.engine.cache;
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
            return Err(damaged("it holds a conversation, and no cached text of a server"));
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
