//! Layout of expanded keys and values in shared memory.

use latent_graph::config::AttentionShape;
use latent_kernels::KvElement;
use latent_kernels::half::bf16;

/// Most elements of keys and values that are expanded at once, unless one head takes more: 64 MB of f32.
const BUDGET: usize = 16 << 20;

/// f32 elements of shared memory that naive MLA needs for a span of `kv_len` cached rows, for every element
/// type.
pub(crate) fn expanded_len(kv_len: usize, a: &AttentionShape) -> usize {
    ExpandedLayout::new::<f32>(kv_len, a).floats().max(ExpandedLayout::new::<bf16>(kv_len, a).floats())
}

/// f32 elements of shared memory that suffice for any span of up to `kv_len` cached rows; monotonic in
/// `kv_len`.
pub(crate) fn expanded_most(kv_len: usize, a: &AttentionShape) -> usize {
    ExpandedLayout::new::<f32>(kv_len, a).most().max(ExpandedLayout::new::<bf16>(kv_len, a).most())
}

/// Offsets in elements of one type. First the cached rows, `[latent | rope]`, packed in blocks like keys;
/// then the keys of each head of a group in blocks, then its values.
#[derive(Clone, Copy)]
pub(crate) struct ExpandedLayout {
    /// Bytes per element.
    bytes: usize,
    /// Cached rows per block.
    block: usize,
    /// Cached rows, padded to whole blocks.
    pub kv_len: usize,
    /// Elements per cached row without its rope part, and with it.
    pub latent: usize,
    pub width: usize,
    /// Elements per key and per value.
    pub nope: usize,
    pub v: usize,
    /// Heads of the model, and heads that are expanded together.
    heads: usize,
    pub group: usize,
}

impl ExpandedLayout {
    pub(crate) fn new<N: KvElement>(kv_len: usize, a: &AttentionShape) -> ExpandedLayout {
        let (kv_len, latent) = (kv_len.next_multiple_of(N::KV_BLOCK), N::padded(a.kv_lora_rank));
        let (nope, v) = (N::padded(a.nope), N::padded(a.v));
        let width = latent + N::padded(a.rope);
        let group = (BUDGET / (kv_len * (nope + v)).max(1)).clamp(1, a.heads);
        let (bytes, block, heads) = (size_of::<N>(), N::KV_BLOCK, a.heads);
        ExpandedLayout { bytes, block, kv_len, latent, width, nope, v, heads, group }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.kv_len / self.block
    }

    /// Offset of the keys of a head of the group, from a block on.
    pub(crate) fn keys(&self, head: usize, block: usize) -> usize {
        self.kv_len * (self.width + head * self.nope) + block * self.block * self.nope
    }

    /// Offset of the values of a head of the group, from a block on.
    pub(crate) fn values(&self, head: usize, block: usize) -> usize {
        self.keys(self.group, 0) + (head * self.kv_len + block * self.block) * self.v
    }

    /// f32 elements that take as many bytes as all of it.
    fn floats(&self) -> usize {
        (self.values(self.group, 0) * self.bytes).div_ceil(size_of::<f32>())
    }

    /// An upper bound of [`floats`](Self::floats) over all shorter spans: a shorter one may expand more heads
    /// at once.
    fn most(&self) -> usize {
        let head = self.kv_len * (self.nope + self.v);
        let all = self.kv_len * self.width + (head * self.heads).min(BUDGET).max(head);
        (all * self.bytes).div_ceil(size_of::<f32>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_needs_more_than_the_most_of_its_context() {
        let mut a = AttentionShape {
            heads: 16,
            q_lora_rank: None,
            kv_lora_rank: 512,
            nope: 128,
            rope: 64,
            v: 128,
            softmax_scale: 1.0,
            temperature: None,
            output_gate: None,
            indexer: None,
        };
        for heads in [1, 16, 128] {
            a.heads = heads;
            let mut before = 0;
            for kv_len in (0..40_000).step_by(37) {
                let most = expanded_most(kv_len, &a);
                assert!(expanded_len(kv_len, &a) <= most && before <= most, "{kv_len} rows");
                before = most;
            }
        }
    }
}
