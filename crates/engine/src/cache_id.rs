//! A number that identifies the contents of cached rows.

use crate::engine::Engine;
use latent_formats::Sha256;
use latent_graph::Partition;
use latent_graph::config::{RopeScaling, WireType};

impl Engine {
    /// Identifies everything, besides the tokens, that decides the contents of KV cache rows: the
    /// model's file, the precision of its computation, and the layout of a row. Caches with the
    /// same id may use each other's rows.
    pub(crate) fn cache_id(&self) -> u64 {
        let stages = &self.options.stages;
        let long = match self.config().rope.scaling {
            RopeScaling::LongRope { original, .. } => self.context() > original,
            _ => false,
        };
        let layout = self.cache.layout();
        let text = format!("{:?} {:?} {:?} {:?} {long}", stages.mla, stages.form, stages.bind, layout.layers);
        let mut hash = Sha256::new();
        hash.update(self.fingerprint.to_le_bytes());
        hash.update(text);
        // A partition that adds up partial sums adds in another order, and rows that cross ranks in
        // 16 bits are rounded. Both change the bits of cached rows.
        let same = |partition: &Partition| !partition.adds_up() && self.wire == WireType::F32;
        if let Some(partition) = self.partition.as_ref().filter(|partition| !same(partition)) {
            hash.update(format!("{partition} {}", self.wire));
        }
        // With offload, another backend computes the rows of the first layers.
        if let Some(front) = &self.summary.front {
            hash.update(format!("{} {} {:?}", front.backend, front.layers, front.tier));
        }
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finalize()[..8]);
        u64::from_le_bytes(id)
    }
}
