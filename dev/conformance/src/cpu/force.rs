//! The tier of functions that select one themselves.

use latent_types::Tier;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Their tier is process-global: one job at a time may force it.
static FORCED: Mutex<()> = Mutex::new(());

/// Keeps them at one tier until it is dropped.
pub(super) struct TierGuard<'l>(#[allow(dead_code, reason = "held")] MutexGuard<'l, ()>, Tier);

impl TierGuard<'_> {
    pub(super) fn tier(tier: Tier) -> TierGuard<'static> {
        let guard = FORCED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = latent_kernels::tier_limit();
        latent_kernels::limit_tier(tier);
        TierGuard(guard, before)
    }
}

impl Drop for TierGuard<'_> {
    fn drop(&mut self) {
        latent_kernels::limit_tier(self.1);
    }
}
