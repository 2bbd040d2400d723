//! Who does what: static shares for dense work, parts for whoever comes first where the work is uneven.

use super::{Chunk, Worker};
use std::ops::Range;

impl Worker<'_> {
    /// This worker's share of `n` things that come in units of `unit`: contiguous, in order, and all shares together are all things.
    pub fn share(&self, n: usize, unit: usize) -> Range<usize> {
        share(self.index..self.index + 1, self.count, n, unit)
    }

    /// What the workers of a node share of `n` things: their [shares](Worker::share) together.
    pub fn node_share(&self, node: usize, n: usize, unit: usize) -> Range<usize> {
        share(self.nodes[node].clone(), self.count, n, unit)
    }

    /// This worker's share of several things, `lengths` of each: which thing, and which of its numbers. Members of a node share out
    /// what the node has of all of them, so that one who has little of the first has more of the second. Of a single thing it is
    /// [`Worker::share`].
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
        lengths.enumerate().filter_map(move |(thing, length)| {
            let own = own(length);
            let end = start + own.len().div_ceil(unit);
            let (from, to) = (mine.start.max(start), mine.end.min(end));
            let numbers = own.start + from.saturating_sub(start) * unit
                ..(own.start + to.saturating_sub(start) * unit).min(own.end);
            start = end;
            (from < to).then_some((thing, numbers))
        })
    }

    /// Whether this worker sees to one of many things: their blocks are dealt to the nodes in turn, and the things of a block to the
    /// workers of its node.
    pub fn is_dealt(&self, block: usize, thing: usize) -> bool {
        let workers = &self.nodes[block % self.nodes.len()];
        self.index == workers.start + thing % workers.len()
    }

    /// Hands `work` parts of a list of which each node has its own, until none is left: parts of this worker's node first, then those of
    /// nodes that are behind. Every worker calls this, for the same lists in the same order.
    pub fn for_each_chunk(&self, mut work: impl FnMut(Chunk)) {
        let list = self.lists.get() + 1;
        self.lists.set(list);
        for turn in 0..self.nodes.len() {
            let node = (self.node + turn) % self.nodes.len();
            while let Some(chunk) = self.work_queues.take(node, list, self.nodes[node].len()) {
                work(chunk);
            }
        }
    }
}

/// What workers of so many share of `n` things in units.
fn share(workers: Range<usize>, count: usize, n: usize, unit: usize) -> Range<usize> {
    let units = n.div_ceil(unit);
    let at = |index: usize| (units * index / count * unit).min(n);
    at(workers.start)..at(workers.end)
}
