//! Arranges blocks in a view, joined by the residual stream. `assets/arrange.js` does the same in
//! the page, where users fold blocks.

use crate::data::{DrawingBlock, DrawingView, PlacedBlock};
use crate::layout::RESIDUAL_X;
use crate::scene::{Primitive, round};

const MARGIN: f64 = 24.0;
const BETWEEN: f64 = 56.0;

/// Arranges `blocks` (indices into `all`, with their first phases) in columns. Each column is a run
/// of layers; the embedding is above the first and the head below the last.
pub(crate) fn view(all: &[DrawingBlock], blocks: &[(usize, usize)]) -> DrawingView {
    let layered = |index: &usize| !all[*index].layers.is_empty();
    let mut columns: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
    let mut with_layer = false;
    for (index, phase) in blocks {
        // The embedding shares the first column with the first run, so a new column starts with the
        // second run.
        if layered(index) && with_layer {
            columns.push(Vec::new());
        }
        with_layer |= layered(index);
        if let Some(column) = columns.last_mut() {
            column.push((*index, *phase));
        }
    }
    let (mut x, mut height) = (MARGIN, 0.0f64);
    let mut placed: Vec<PlacedBlock> = Vec::new();
    let mut scene = Vec::new();
    for column in columns {
        let mut y = MARGIN;
        let mut width: f64 = 0.0;
        for (at, (index, first_phase)) in column.into_iter().enumerate() {
            let block = &all[index];
            if let Some(before) = placed.last() {
                join(all, before, (x, y), at == 0, &mut scene);
            }
            placed.push(PlacedBlock {
                block: index,
                x: round(x),
                y: round(y),
                first_phase,
                changed: Vec::new(),
                removed: Vec::new(),
            });
            y += block.height + BETWEEN;
            width = width.max(block.width);
        }
        height = height.max(y - BETWEEN + MARGIN);
        x += width + BETWEEN;
    }
    DrawingView {
        stage: "",
        pass: None,
        formulation: None,
        bucket: None,
        width: round(x - BETWEEN + MARGIN),
        height: round(height),
        blocks: placed,
        scene,
        phases: None,
        memory: None,
    }
}

/// Draws the residual stream from one block to the next: down, or over to the next column.
fn join(
    all: &[DrawingBlock],
    before: &PlacedBlock,
    (x, y): (f64, f64),
    aside: bool,
    scene: &mut Vec<Primitive>,
) {
    let block = &all[before.block];
    let (from_x, bottom) = (before.x + RESIDUAL_X, before.y + block.height);
    let to_x = x + RESIDUAL_X;
    let d = if aside {
        // In the middle of the gap between columns, where no block is.
        let channel = before.x + block.width + BETWEEN / 2.0;
        format!(
            "M{} {} V{} Q{} {} {} {} H{} Q{} {} {} {} V{} Q{} {} {} {} H{} Q{} {} {} {} V{}",
            round(from_x),
            round(bottom - 14.0),
            round(bottom + 2.0),
            round(from_x),
            round(bottom + 12.0),
            round(from_x + 10.0),
            round(bottom + 12.0),
            round(channel - 10.0),
            round(channel),
            round(bottom + 12.0),
            round(channel),
            round(bottom + 2.0),
            round(y - 2.0),
            round(channel),
            round(y - 12.0),
            round(channel + 10.0),
            round(y - 12.0),
            round(to_x - 10.0),
            round(to_x),
            round(y - 12.0),
            round(to_x),
            round(y - 2.0),
            round(y + 2.0)
        )
    } else {
        format!("M{} {} V{}", round(from_x), round(bottom - 14.0), round(y + 2.0))
    };
    scene.push(Primitive::path(d, "residual-stream"));
}
