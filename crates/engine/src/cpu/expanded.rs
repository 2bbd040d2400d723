//! The naive formulation: keys and values expanded from cached latents, or read as they were stored.

use super::absorb::Half;
use super::batch::Segment;
use super::compile::{KvWeights, Slot};
use super::local::{Local, grown};
use super::run::Thread;
use crate::cache::{PAGE_ROWS, StreamMemory};
use graph::ir::Lane;
use kernels::{Partials, Rows, RowsMut};
use std::ops::Range;

/// Numbers that keys and values expanded on the fly may take, unless one head alone takes more: 64 MB.
const BUDGET: usize = 16 << 20;

/// Query rows of a task.
const QUERIES: usize = 16;

/// Keys and values of a group of heads, and the rope keys, for all rows that a segment sees.
struct Expanded<'a> {
    keys: Rows<'a>,
    rope: Rows<'a>,
    values: Rows<'a>,
}

/// Heads that are expanded together for `length` cached rows.
fn group_heads(length: usize, heads: usize, nope: usize, v: usize) -> usize {
    (BUDGET / (length * (nope + v)).max(1)).clamp(1, heads)
}

/// Numbers of shared memory that the naive formulation needs for a segment that sees `length` rows.
pub fn expanded_len(length: usize, heads: usize, nope: usize, rope: usize, v: usize) -> usize {
    length * (group_heads(length, heads, nope, v) * (nope + v) + rope)
}

impl Thread<'_> {
    /// Expands group after group of heads, and attends to each.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn attend_expanded(
        &self,
        q_nope: &Slot,
        q_rope: &Slot,
        kv: Option<&KvWeights>,
        out: &Slot,
        stream: usize,
        lane: Lane,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        for segment in self.batch.in_lane(lane) {
            let length = segment.first + segment.rows.len();
            let group = group_heads(length, a.heads, a.nope, a.v);
            for first in (0..a.heads).step_by(group) {
                let heads = first..(first + group).min(a.heads);
                match kv {
                    Some(kv) => self.expand(segment, stream, kv, &heads, length, local),
                    None => self.unpack(segment, stream, &heads, length, local),
                }
                self.member.barrier();
                self.attend_group(segment, q_nope, q_rope, &heads, length, out, local);
                self.member.barrier();
            }
        }
    }

    /// Places of keys, rope keys and values in the shared memory.
    fn layout(&self, heads: &Range<usize>, length: usize) -> (usize, usize, usize) {
        let a = &self.model.contract.attention;
        let keys = length * heads.len() * a.nope;
        (0, keys, keys + length * a.rope)
    }

    /// This thread's cached rows, block by block, through W_UK and W_UV of each head of the group.
    fn expand(
        &self,
        segment: &Segment,
        stream: usize,
        kv: &KvWeights,
        heads: &Range<usize>,
        length: usize,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let (keys_at, rope_at, values_at) = self.layout(heads, length);
        let needs = Self::kv_needs(kv);
        let mine = self.member.share(length, PAGE_ROWS);
        let Local { acts, scratch, results, .. } = local;
        for start in mine.clone().step_by(PAGE_ROWS) {
            let rows = start..(start + PAGE_ROWS).min(mine.end);
            let width = a.latent_width();
            let lines = grown(results, rows.len() * width);
            for (row, line) in rows.clone().zip(lines.chunks_exact_mut(width)) {
                kernels::load_row(self.pool.cache_type(), self.cached(segment, stream, row), line);
                let rope = self.expanded_memory(rope_at + row * a.rope, a.rope);
                rope.copy_from_slice(&line[a.kv_lora_rank..]);
            }
            let latent = Rows::new(lines, rows.len(), a.kv_lora_rank, width);
            let x = acts.prepare(latent, None, needs);
            for (h, head) in heads.clone().enumerate() {
                for (half, at, width) in [(Half::Key, keys_at, a.nope), (Half::Value, values_at, a.v)] {
                    let stride = heads.len() * width;
                    let mut y =
                        self.expanded_rows(at + rows.start * stride + h * width, rows.len(), width, stride);
                    self.head_out_of_latent(kv, &half, head, &x, 0..width, &mut y, scratch);
                }
            }
        }
    }

    /// This thread's cached rows of an expanded stream.
    fn unpack(
        &self,
        segment: &Segment,
        stream: usize,
        heads: &Range<usize>,
        length: usize,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let (keys_at, rope_at, values_at) = self.layout(heads, length);
        let line = grown(&mut local.results, a.expanded_width());
        for row in self.member.share(length, PAGE_ROWS) {
            kernels::load_row(self.pool.cache_type(), self.cached(segment, stream, row), line);
            for (h, head) in heads.clone().enumerate() {
                let numbers = &line[head * (a.nope + a.rope + a.v)..][..a.nope + a.rope + a.v];
                let at = row * heads.len() + h;
                self.expanded_memory(keys_at + at * a.nope, a.nope).copy_from_slice(&numbers[..a.nope]);
                self.expanded_memory(values_at + at * a.v, a.v).copy_from_slice(&numbers[a.nope + a.rope..]);
                if h == 0 {
                    let rope = self.expanded_memory(rope_at + row * a.rope, a.rope);
                    rope.copy_from_slice(&numbers[a.nope..a.nope + a.rope]);
                }
            }
        }
    }

    /// A cached row of a segment.
    fn cached(&self, segment: &Segment, stream: usize, row: usize) -> &[u8] {
        let place = segment.pages[row / PAGE_ROWS] as usize * PAGE_ROWS + row % PAGE_ROWS;
        self.pool.streams()[stream].1.row(place)
    }

    /// Attention of the segment's rows with one group of heads: tasks of a head and some query rows.
    #[allow(clippy::too_many_arguments, reason = "one group of one instruction")]
    fn attend_group(
        &self,
        segment: &Segment,
        q_nope: &Slot,
        q_rope: &Slot,
        heads: &Range<usize>,
        length: usize,
        out: &Slot,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let (keys_at, rope_at, values_at) = self.layout(heads, length);
        let blocks = segment.rows.len().div_ceil(QUERIES);
        for task in 0..heads.len() * blocks {
            if task % self.member.count != self.member.index {
                continue;
            }
            let (h, block) = (task / blocks, task % blocks);
            let view = |at, width| self.expanded_read(at + h * width, length, width, heads.len() * width);
            let expanded = Expanded {
                keys: view(keys_at, a.nope),
                rope: self.expanded_read(rope_at, length, a.rope, a.rope),
                values: view(values_at, a.v),
            };
            let last = segment.rows.end.min(segment.rows.start + (block + 1) * QUERIES);
            for row in segment.rows.start + block * QUERIES..last {
                self.attend_row(row, heads.start + h, q_nope, q_rope, &expanded, out, local);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one row and head")]
    fn attend_row(
        &self,
        row: usize,
        head: usize,
        q_nope: &Slot,
        q_rope: &Slot,
        expanded: &Expanded<'_>,
        out: &Slot,
        local: &mut Local,
    ) {
        let position = self.batch.positions[row];
        let query = grown(&mut local.more, q_nope.width + q_rope.width);
        query[..q_nope.width].copy_from_slice(self.head(q_nope, row, head));
        query[q_nope.width..].copy_from_slice(self.head(q_rope, row, head));
        let (mut max, mut sum) = ([f32::NEG_INFINITY], [0.0]);
        let result = self.head_mut(out, row, head);
        let width = result.len();
        let mut part = Partials { max: &mut max, sum: &mut sum, o: RowsMut::new(result, 1, width, width) };
        kernels::attend_expanded(
            Rows::new(query, 1, query.len(), query.len()),
            expanded.keys,
            expanded.rope,
            expanded.values,
            0..position + 1,
            self.score_scale(position),
            &mut part,
        );
        kernels::scale(result, 1.0 / sum[0]);
    }

    /// Rows of the expanded cache: each thread expands the heads of its own rows.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn expanded_store(
        &self,
        latent: &Slot,
        key: &Slot,
        rotate: bool,
        kv: &KvWeights,
        stream: usize,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let needs = Self::kv_needs(kv);
        let memory: &StreamMemory = &self.pool.streams()[stream].1;
        let Local { acts, scratch, results, more, .. } = local;
        let head_width = a.nope + a.rope + a.v;
        let line = grown(results, a.expanded_width());
        let rope = grown(more, a.rope);
        for segment in &self.batch.segments {
            for row in self.member.share(segment.rows.len(), 1) {
                let position = segment.first + row;
                let row = segment.rows.start + row;
                let x = acts.prepare(self.read(latent, row..row + 1, 0, a.kv_lora_rank), None, needs);
                rope.copy_from_slice(self.row(key, row));
                if rotate {
                    self.model.rope.apply(rope, position as i64, self.model.pairs);
                }
                for (head, numbers) in line.chunks_exact_mut(head_width).enumerate() {
                    let (k, rest) = numbers.split_at_mut(a.nope);
                    let (r, v) = rest.split_at_mut(a.rope);
                    r.copy_from_slice(rope);
                    for (half, numbers) in [(Half::Key, k), (Half::Value, v)] {
                        let width = numbers.len();
                        let mut y = RowsMut::new(numbers, 1, width, width);
                        self.head_out_of_latent(kv, &half, head, &x, 0..width, &mut y, scratch);
                    }
                }
                let place = segment.pages[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
                kernels::store_row(self.pool.cache_type(), line, self.cache_row(memory, place));
            }
        }
    }
}
