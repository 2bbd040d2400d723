//! Passes: small pure functions IR → IR, each with a name and a snapshot test, and the two that make a plan of the last IR.

mod bind;
mod epilogues;
mod experts;
mod formulations;
mod norms;
mod phases;
mod place;
mod projections;
mod ropes;
#[cfg(test)]
pub(crate) mod snapshots;

pub use bind::{BindOptions, Precision, asked, bind, choose};
pub(crate) use bind::{Request, class_bound_for};
pub use epilogues::fold_epilogues;
pub use experts::group_experts;
pub use formulations::{CacheForm, FORMS, MlaChoice, choose_formulations, crossover};
pub use norms::fold_norms;
pub(crate) use phases::chosen_by_each;
pub use phases::cut_phases;
pub(crate) use place::lifetimes;
pub use place::{Arena, place_buffers};
pub use projections::fuse_projections;
pub use ropes::fold_ropes;

use crate::ir::{Ir, Node, Op, ValueId};
use std::ops::Range;

/// How many rows a plan is made for. Fewer rows than a class allows may run through its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowClass {
    /// One row: a single sequence decoding.
    One,
    /// 2 to 16 rows: several sequences, or drafts to verify.
    Few,
    /// More: prefill.
    Many,
}

impl RowClass {
    /// Most rows of [`RowClass::Few`].
    pub const FEW: usize = 16;

    /// The class that a step of `rows` rows runs in.
    pub fn of(rows: usize) -> RowClass {
        match rows {
            0 | 1 => RowClass::One,
            2..=Self::FEW => RowClass::Few,
            _ => RowClass::Many,
        }
    }

    /// What its steps do, for people.
    pub fn purpose(self) -> &'static str {
        match self {
            RowClass::One => "decode",
            RowClass::Few => "small batch",
            RowClass::Many => "prefill",
        }
    }

    /// The fewest rows of a step that runs in it.
    pub fn least_rows(self) -> usize {
        match self {
            RowClass::One => 1,
            RowClass::Few => 2,
            RowClass::Many => Self::FEW + 1,
        }
    }

    /// The most rows that its plan takes, when a step has at most `largest`.
    pub fn max_rows(self, largest: usize) -> usize {
        match self {
            RowClass::One => 1,
            RowClass::Few => Self::FEW.min(largest),
            RowClass::Many => largest,
        }
    }
}

/// Whether one of these nodes writes where `value` lies: a sum in place does. (What a split makes is there already.)
fn overwritten(ir: &Ir, value: ValueId, mut nodes: Range<usize>) -> bool {
    let (root, place) = ir.place(value);
    nodes.any(|n| {
        let over = |id: &ValueId| {
            let (of, other) = ir.place(*id);
            of == root && other.start < place.end && place.start < other.end
        };
        ir.nodes[n].op != Op::Split && ir.nodes[n].outputs.iter().any(over)
    })
}

/// The node at `index`, taken out of the list.
fn remove(ir: &mut Ir, index: usize) -> Node {
    ir.nodes.remove(index)
}
