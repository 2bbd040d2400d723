//! Forces the tier of functions that select their ISA themselves.

use latent_types::Tier;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tier limit is process-wide, so only one job at a time may force it.
static FORCED: Mutex<()> = Mutex::new(());

/// Forces a tier until it is dropped.
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
        // The lock is a field, so it is released after the limit is restored.
        latent_kernels::limit_tier(self.1);
    }
}
