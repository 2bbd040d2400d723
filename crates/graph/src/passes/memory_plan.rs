//! The memory plan: values that are not alive at the same time share memory.

use crate::ir::{Ir, ValueStorage};
use serde::Serialize;

/// Positions in a plan's arena of the values that have their own buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Arena {
    /// Size in bytes.
    pub bytes: usize,
    /// Offset of each value in bytes; `None` for values that are stored elsewhere.
    pub offsets: Vec<Option<usize>>,
}

/// Alignment of buffers in bytes: a cache line.
const ALIGN: usize = 64;

/// The size of a buffer, and the first and last phase in which it is alive (inclusive).
pub struct BufferLifetime {
    /// Index of the value in [`Ir::values`].
    pub value: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The phase that writes it first.
    pub first: usize,
    /// The phase that reads it last.
    pub last: usize,
}

/// Places the buffers of `ir`, whose nodes run in `phases`, for at most `rows` rows.
///
/// Greedy by size: larger buffers first, each at the lowest offset that is free for its lifetime.
pub fn plan_memory(ir: &Ir, phases: &[usize], rows: usize) -> Arena {
    let mut lives = lifetimes(ir, phases, rows);
    // The index as a second key makes the plan reproducible for buffers of equal size.
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.value));
    let mut arena = Arena { bytes: 0, offsets: vec![None; ir.values.len()] };
    let mut placed: Vec<(usize, &BufferLifetime)> = Vec::new();
    for life in &lives {
        let mut neighbours: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(_, other)| life.first <= other.last && other.first <= life.last)
            .map(|(at, other)| (*at, at.saturating_add(other.bytes)))
            .collect();
        neighbours.sort_unstable();
        let mut at = 0usize;
        // First fit: neighbours are sorted by offset, and `at` is the end of those passed so far.
        for (start, end) in neighbours {
            if at.saturating_add(life.bytes) <= start {
                break;
            }
            at = at.max(end);
        }
        arena.bytes = arena.bytes.max(at.saturating_add(life.bytes));
        arena.offsets[life.value] = Some(at);
        placed.push((at, life));
    }
    arena
}

/// The lifetime of every value with a buffer of its own.
pub fn lifetimes(ir: &Ir, phases: &[usize], rows: usize) -> Vec<BufferLifetime> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; ir.values.len()];
    for (node, &phase) in ir.nodes.iter().zip(phases) {
        for id in node.inputs.iter().chain(&node.outputs) {
            // A view keeps its root alive. Lifetimes are phases and not nodes, because the nodes of
            // one phase run concurrently.
            let span = spans[ir.root(*id).0].get_or_insert((phase, phase));
            *span = (span.0.min(phase), span.1.max(phase));
        }
    }
    let last_phase = phases.iter().copied().max().unwrap_or(0);
    for (_, id) in &ir.outputs {
        if let Some(span) = &mut spans[ir.root(*id).0] {
            // The engine reads results after the last phase.
            span.1 = last_phase;
        }
    }
    let own = |(value, span): (usize, Option<(usize, usize)>)| {
        let (first, last) = span?;
        let v = &ir.values[value];
        // Saturating: a size that no memory holds becomes the largest number. The loader compares
        // it with free memory and reports the error.
        let bytes = v.rows.of(rows).saturating_mul(v.row_width()).saturating_mul(v.dtype.bytes());
        let bytes = bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        (v.storage == ValueStorage::Own).then_some(BufferLifetime { value, bytes, first, last })
    };
    spans.into_iter().enumerate().filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Node, Op, RowCount, Value, ValueId};
    use latent_types::ValueType;

    #[test]
    fn values_that_live_together_never_overlap() {
        let mut ir = Ir::default();
        for i in 0..12 {
            ir.add_value(Value {
                name: format!("v{i}"),
                layer: None,
                dtype: ValueType::F32,
                rows: RowCount::Rows,
                heads: 1,
                width: 7 * (i % 5 + 1),
                storage: ValueStorage::Own,
            });
        }
        for i in 0..9 {
            let inputs = vec![ValueId(i), ValueId(i + 1)];
            ir.nodes.push(Node::new(Op::SiluMul, None, inputs, vec![ValueId(i + 2 + usize::from(i == 8))]));
        }
        let phases: Vec<usize> = (0..9).collect();
        let arena = plan_memory(&ir, &phases, 3);
        let lives = lifetimes(&ir, &phases, 3);
        let mut total = 0;
        for a in &lives {
            total += a.bytes;
            for b in &lives {
                let (at_a, at_b) = (arena.offsets[a.value].unwrap(), arena.offsets[b.value].unwrap());
                let together = a.first <= b.last && b.first <= a.last && a.value != b.value;
                assert!(!together || at_a + a.bytes <= at_b || at_b + b.bytes <= at_a);
            }
        }
        assert!(arena.bytes < total);
        // More rows than any memory holds.
        assert_eq!(plan_memory(&ir, &phases, usize::MAX).bytes, usize::MAX);
    }
}
