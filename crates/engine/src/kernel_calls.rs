//! Lists the kernel calls of a step without running it.

use crate::cache::CacheFull;
use crate::engine::Engine;
use crate::error::EngineError;
use latent_backend::{Batch, InputRows, KV_BLOCK, NodeCalls};

impl Engine {
    /// The kernel calls of a step of one sequence: `rows` new tokens after `cached` ones, with the
    /// logits of the last. Nothing runs, so the model's weights need not be in memory. Empty for
    /// backends whose kernels are functions of the program.
    ///
    /// # Errors
    /// If the step does not fit the engine, or the device lacks a feature.
    pub fn kernel_calls(&mut self, rows: usize, cached: usize) -> Result<Vec<NodeCalls>, EngineError> {
        let rows = rows.clamp(1, self.max_batch_tokens());
        let capacity = self.largest_context().max(self.kv_cache().capacity());
        let fits = rows.checked_add(cached).filter(|all| *all <= capacity);
        let Some(all) = fits else {
            return Err(CacheFull { rows, cached, capacity }.into());
        };
        let blocks = all.div_ceil(KV_BLOCK) as u32;
        let kv = self.model.new_kv_store(blocks, 0)?;
        // Kernel calls depend on shapes only, not on the tokens.
        let (tokens, table): (_, Vec<u32>) = (vec![0; rows], (0..blocks).collect());
        let mut batch = Batch::default();
        batch.push(InputRows::Tokens(&tokens), cached, &table, self.path(cached, rows));
        batch.wanted.push(rows as u32 - 1);
        Ok(self.model.kernel_calls(&batch, &*kv)?)
    }
}
