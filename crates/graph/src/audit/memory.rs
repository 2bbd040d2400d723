//! Rules for a plan's arena: buffers against the lifetimes of values.

use super::findings::Findings;
use super::rules::Code;
use super::trace::ResolvedIr;
use crate::ir::ValueStorage;
use crate::plan::Plan;
use std::collections::BTreeMap;

/// Required alignment of buffers in bytes: a cache line.
const LINE: usize = 64;

/// A buffer: its bytes in the arena, and the first and last phase in which it is alive (inclusive).
struct Buffer {
    value: usize,
    from: usize,
    to: usize,
    first: usize,
    last: usize,
}

pub(super) fn check(trace: &ResolvedIr<'_>, plan: &Plan, found: &mut Findings<'_>) {
    let lives = lives(trace, plan);
    let mut buffers = Vec::new();
    for (v, value) in plan.ir.values.iter().enumerate() {
        let offset = plan.arena.offsets.get(v).copied().flatten();
        let slot = || Some(format!("value {}", value.name));
        match (value.storage == ValueStorage::Own, offset, lives[v]) {
            (true, None, Some(_)) => found.add(Code::A60, value.layer, slot(), "it has no buffer".into()),
            // A view with a buffer would be written in one place and read in another.
            (false, Some(at), _) => {
                found.add(
                    Code::A64,
                    value.layer,
                    slot(),
                    format!("it is stored in {:?}, yet has a buffer at {at}", value.storage),
                );
            }
            (true, Some(from), Some((first, last))) => {
                let elements = value.rows.of(plan.max_rows).saturating_mul(value.row_width());
                let size = elements.saturating_mul(value.dtype.bytes());
                let to = from.saturating_add(size);
                if to > plan.arena.bytes {
                    let problem = format!("bytes {from} to {to} exceed the arena's {}", plan.arena.bytes);
                    found.add(Code::A61, value.layer, slot(), problem);
                }
                if from % LINE != 0 {
                    found.add(
                        Code::A63,
                        value.layer,
                        slot(),
                        format!("its offset {from} is not a multiple of {LINE}"),
                    );
                }
                buffers.push(Buffer { value: v, from, to, first, last });
            }
            _ => {}
        }
    }
    overlaps(plan, buffers, found);
}

/// First and last phase in which a node accesses each value or a view of it.
fn lives(trace: &ResolvedIr<'_>, plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.ir.values.len()];
    for (node, &phase) in plan.ir.nodes.iter().zip(&plan.phases) {
        for id in node.inputs.iter().chain(&node.outputs) {
            let life = lives[trace.places[id.0].root].get_or_insert((phase, phase));
            *life = (life.0.min(phase), life.1.max(phase));
        }
    }
    let end = plan.phases.iter().copied().max().unwrap_or(0);
    for (_, id) in &plan.ir.outputs {
        if let Some(life) = &mut lives[trace.places[id.0].root] {
            // Results are read after the plan has run, so their memory must last until its end.
            life.1 = end;
        }
    }
    lives
}

/// A62: sweeps over the phases with the live buffers, ordered by their position.
fn overlaps(plan: &Plan, mut buffers: Vec<Buffer>, found: &mut Findings<'_>) {
    buffers.sort_by_key(|b| b.first);
    let mut ends: Vec<usize> = (0..buffers.len()).collect();
    // Sorted by end as well, so that one sweep removes each ended buffer once.
    ends.sort_by_key(|b| buffers[*b].last);
    let mut ended = 0;
    // Live buffers by offset. Two at one offset were reported; the map keeps the later one.
    let mut alive: BTreeMap<usize, usize> = BTreeMap::new();
    for (b, buffer) in buffers.iter().enumerate() {
        while ended < ends.len() && buffers[ends[ended]].last < buffer.first {
            let gone = ends[ended];
            // A later buffer at the same offset replaced this one in the map and may still be live.
            if alive.get(&buffers[gone].from) == Some(&gone) {
                alive.remove(&buffers[gone].from);
            }
            ended += 1;
        }
        // Live buffers do not overlap each other, so only the two neighbours can overlap the new
        // one.
        let before = alive.range(..=buffer.from).next_back().filter(|(_, o)| buffers[**o].to > buffer.from);
        let after = alive.range(buffer.from..).next().filter(|(from, _)| **from < buffer.to);
        if let Some((_, &other)) = before.or(after) {
            let (value, other) = (&plan.ir.values[buffer.value], &buffers[other]);
            let problem = format!(
                "bytes {} to {} in phases {} to {} overlap value {}: {} to {} in phases {} to {}",
                buffer.from,
                buffer.to,
                buffer.first,
                buffer.last,
                plan.ir.values[other.value].name,
                other.from,
                other.to,
                other.first,
                other.last
            );
            found.add(Code::A62, value.layer, Some(format!("value {}", value.name)), problem);
        }
        alive.insert(buffer.from, b);
    }
}
