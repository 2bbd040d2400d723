//! Layout of expanded keys and values in shared memory.

use latent_graph::config::AttentionShape;
use latent_kernels::KvElement;
use latent_kernels::half::bf16;

/// Maximum elements of keys and values that are expanded in one pass (64 MB of f32), unless one
/// head takes more.
const MAX_ELEMENTS: usize = 16 << 20;

/// Number of f32 elements of shared memory that naive MLA needs for a span of `kv_len` cached rows,
/// whichever element type its kernels use.
pub(crate) fn expanded_len(kv_len: usize, a: &AttentionShape) -> usize {
    // f16 uses the layout of f32 with half the bytes. bf16 pads to larger blocks (128 rows), so for
    // short spans it may take more than f32.
    ExpandedLayout::new::<f32>(kv_len, a).floats().max(ExpandedLayout::new::<bf16>(kv_len, a).floats())
}

/// Number of f32 elements of shared memory that suffice for any span of up to `kv_len` cached rows.
/// Monotonic in `kv_len`.
pub(crate) fn max_expanded_len(kv_len: usize, a: &AttentionShape) -> usize {
    let f32 = ExpandedLayout::new::<f32>(kv_len, a).max_floats();
    f32.max(ExpandedLayout::new::<bf16>(kv_len, a).max_floats())
}

/// Offsets in elements of one type. The buffer holds the cached rows `[latent | rope]`, packed in
/// blocks like keys, then the keys of each head of a group in blocks, then its values.
#[derive(Clone, Copy)]
pub(crate) struct ExpandedLayout {
    /// Bytes per element.
    bytes: usize,
    /// Cached rows per block.
    block: usize,
    /// Cached rows, padded to whole blocks.
    pub kv_len: usize,
    /// Elements per cached row without its rope part.
    pub latent: usize,
    /// Elements per cached row with its rope part.
    pub width: usize,
    /// Elements per key.
    pub nope: usize,
    /// Elements per value.
    pub v: usize,
    /// Heads of the model.
    heads: usize,
    /// Heads that are expanded in one pass.
    pub group: usize,
}

impl ExpandedLayout {
    pub(crate) fn new<N: KvElement>(kv_len: usize, a: &AttentionShape) -> ExpandedLayout {
        let (kv_len, latent) = (kv_len.next_multiple_of(N::KV_BLOCK), N::padded(a.kv_lora_rank));
        let (nope, v) = (N::padded(a.nope), N::padded(a.v));
        let width = latent + N::padded(a.rope);
        let group = (MAX_ELEMENTS / (kv_len * (nope + v)).max(1)).clamp(1, a.heads);
        let (bytes, block, heads) = (size_of::<N>(), N::KV_BLOCK, a.heads);
        ExpandedLayout { bytes, block, kv_len, latent, width, nope, v, heads, group }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.kv_len / self.block
    }

    /// Offset of a block of the keys of a head of the group.
    pub(crate) fn keys(&self, head: usize, block: usize) -> usize {
        self.kv_len * (self.width + head * self.nope) + block * self.block * self.nope
    }

    /// Offset of a block of the values of a head of the group.
    pub(crate) fn values(&self, head: usize, block: usize) -> usize {
        self.keys(self.group, 0) + (head * self.kv_len + block * self.block) * self.v
    }

    /// Size of the buffer, in f32 elements.
    fn floats(&self) -> usize {
        (self.values(self.group, 0) * self.bytes).div_ceil(size_of::<f32>())
    }

    /// An upper bound of [`floats`](Self::floats) over all spans up to this length.
    fn max_floats(&self) -> usize {
        // `floats` itself is not monotonic: a shorter span may expand more heads per pass.
        let head = self.kv_len * (self.nope + self.v);
        let all = self.kv_len * self.width + (head * self.heads).min(MAX_ELEMENTS).max(head);
        (all * self.bytes).div_ceil(size_of::<f32>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_need_at_most_the_maximum_for_their_context() {
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
                let bound = max_expanded_len(kv_len, &a);
                assert!(expanded_len(kv_len, &a) <= bound && before <= bound, "{kv_len} rows");
                before = bound;
            }
        }
    }
}
