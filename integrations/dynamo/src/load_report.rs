//! Cache load reports for Dynamo's router and its metrics.

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use latent_engine::scheduler::SchedulerStats;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct LoadReport {
    publisher: Option<Arc<SnapshotPublisher>>,
    told: Option<ComponentSnapshot>,
}

impl LoadReport {
    pub(crate) fn to(&mut self, publisher: Arc<SnapshotPublisher>) {
        self.publisher = Some(publisher);
        self.told = None;
    }

    /// Tells it where it has changed.
    pub(crate) fn tell(&mut self, stats: &SchedulerStats) {
        let Some(publisher) = &self.publisher else { return };
        let snapshot = snapshot(stats);
        if self.told != Some(snapshot) {
            publisher.publish(snapshot.dp_rank, snapshot);
            self.told = Some(snapshot);
        }
    }
}

fn snapshot(stats: &SchedulerStats) -> ComponentSnapshot {
    let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f32 / of as f32 };
    let (used, total) = (stats.blocks_used as u64, stats.blocks as u64);
    let asked = stats.prefixes.tokens_asked;
    ComponentSnapshot {
        kv_used_blocks: used,
        kv_total_blocks: total,
        gpu_cache_usage: share(used, total),
        kv_cache_hit_rate: (asked > 0).then(|| share(stats.prefixes.tokens_saved, asked)),
        dp_rank: 0,
    }
}
