//! Cached texts in files: the rows that the prefix cache has of a text, in the form of a saved sequence.
//!
//! The attachment of such a file says who may use the rows: the magic `LATNTPX1`, the salt of their jobs (16 bytes), and the id of the cache (`u64`),
//! which depends on the settings that decide what rows hold.

use super::Scheduler;
use crate::cache::{CacheFileError, CacheSalt, HashChain, SavedLayers};
use crate::error::EngineError;
use latent_backend::KV_BLOCK;
use std::path::Path;

const MAGIC: &[u8; 8] = b"LATNTPX1";

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
        // a prompt never takes the row of its last token, which is wanted here too
        let longer = [tokens, &[0]].concat();
        let chain = self.chain(salt, &longer);
        self.prefixes.load(&mut self.engine.cache, &chain, &longer, usize::MAX);
        let drafts = self.engine.drafts();
        let Some((sequence, _)) = self.prefixes.adopt(&chain, &longer, drafts) else { return Ok(0) };
        let attachment = self.attachment(salt);
        let (cache, fingerprint) = (&self.engine.cache, self.engine.fingerprint);
        let layers = SavedLayers::ModelAndMtp;
        cache.save_with(&sequence, tokens, fingerprint, Some(&attachment), layers, path)?;
        Ok(sequence.len())
    }

    /// Reads a file of [`save_prefix`](Self::save_prefix) into the prefix cache, for jobs of the same salt. Cached prefixes that were not used for
    /// the longest time make room. Returns the tokens of the file.
    ///
    /// # Errors
    /// [`EngineError::CacheFile`] for a file that is damaged, belongs to another model, cache type or salt, or does not fit.
    pub fn restore_prefix(&mut self, salt: CacheSalt, path: &Path) -> Result<Vec<u32>, EngineError> {
        let (fingerprint, layers) = (self.engine.fingerprint, SavedLayers::ModelAndMtp);
        let mut restored = self.engine.cache.restore_with(path, fingerprint, layers);
        if let Err(CacheFileError::Full { .. } | CacheFileError::StatesFull { .. }) = restored {
            if let Err(CacheFileError::Full { full, .. }) = &restored {
                self.free_blocks(full.rows);
            }
            self.prefixes.evict_states(1);
            restored = self.engine.cache.restore_with(path, fingerprint, layers);
        }
        let (sequence, tokens, attachment) = restored?;
        self.check_attachment(salt, attachment.as_deref(), path)?;
        let chain = self.chain(salt, &tokens);
        self.prefixes.insert(&chain, &tokens, &sequence, true);
        Ok(tokens)
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
