//! Division of work: static shares for even work, chunks from work queues otherwise.

use super::{PoolWorker, WorkChunk};
use std::ops::Range;

impl PoolWorker<'_> {
    /// This worker's share of `n` items, divided at multiples of `unit`. Shares are contiguous, in
    /// the order of workers, and cover all items.
    pub fn share(&self, n: usize, unit: usize) -> Range<usize> {
        share(self.index..self.index + 1, self.count, n, unit)
    }

    /// The union of the [shares](PoolWorker::share) of a node's workers.
    pub fn node_share(&self, node: usize, n: usize, unit: usize) -> Range<usize> {
        share(self.nodes[node].clone(), self.count, n, unit)
    }

    /// This worker's share of several lists of these `lengths`: (list, range) pairs. A node's
    /// workers divide the concatenation of the node's ranges of all lists, so that a worker with
    /// little of the first list has more of the second. For a single list it is
    /// [`PoolWorker::share`].
    pub fn shares<'l>(
        &'l self,
        lengths: impl Iterator<Item = usize> + Clone + 'l,
        unit: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 'l {
        let workers = &self.nodes[self.node];
        let own = move |length| self.node_share(self.node, length, unit);
        let units = move |length| own(length).len().div_ceil(unit);
        let mine = match (lengths.clone().next(), lengths.clone().nth(1)) {
            (Some(only), None) => {
                let (mine, own) = (self.share(only, unit), own(only));
                (mine.start - own.start) / unit..(mine.end - own.start).div_ceil(unit)
            }
            _ => {
                let local = self.index - workers.start;
                share(local..local + 1, workers.len(), lengths.clone().map(units).sum(), 1)
            }
        };
        let mut start = 0;
        lengths.enumerate().filter_map(move |(list, length)| {
            let own = own(length);
            let end = start + own.len().div_ceil(unit);
            let (from, to) = (mine.start.max(start), mine.end.min(end));
            let items = own.start + from.saturating_sub(start) * unit
                ..(own.start + to.saturating_sub(start) * unit).min(own.end);
            start = end;
            (from < to).then_some((list, items))
        })
    }

    /// Whether an item is assigned to this worker, round-robin: blocks of items to nodes, and the
    /// items of a block to the workers of its node.
    pub fn is_dealt(&self, block: usize, item: usize) -> bool {
        let workers = &self.nodes[block % self.nodes.len()];
        self.index == workers.start + item % workers.len()
    }

    /// Calls `work` with one chunk of a list at a time, until all are taken. Each node has a part
    /// of the list: the chunks of this worker's node come first, then the remaining ones of other
    /// nodes. Every worker must call this for the same lists in the same order.
    pub fn for_each_chunk(&self, mut work: impl FnMut(WorkChunk)) {
        // Workers number lists independently, which needs no synchronization since all start them
        // in the same order.
        let list = self.lists.get() + 1;
        self.lists.set(list);
        for turn in 0..self.nodes.len() {
            let node = (self.node + turn) % self.nodes.len();
            while let Some(chunk) = self.work_queues.take(node, list, self.nodes[node].len()) {
                work(chunk);
            }
        }
    }

    /// Calls `work` with ranges of `n` items, divided at multiples of `unit`, until all are taken,
    /// as [`for_each_chunk`](Self::for_each_chunk) does. A worker that another program delays takes
    /// fewer of them.
    pub fn for_each_range(&self, n: usize, unit: usize, mut work: impl FnMut(Range<usize>)) {
        self.for_each_chunk(|chunk| {
            let own = self.node_share(chunk.node, n, unit);
            let units = chunk.of(own.len().div_ceil(unit) as u64);
            let items =
                own.start + units.start as usize * unit..(own.start + units.end as usize * unit).min(own.end);
            if !items.is_empty() {
                work(items);
            }
        });
    }
}

/// The items of some of `count` workers.
fn share(workers: Range<usize>, count: usize, n: usize, unit: usize) -> Range<usize> {
    let units = n.div_ceil(unit);
    let at = |index: usize| (units * index / count * unit).min(n);
    at(workers.start)..at(workers.end)
}
