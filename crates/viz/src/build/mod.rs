//! Builds blocks and views from a circuit, an IR or a plan.

pub(crate) mod arrange;
pub(crate) mod blocks;
pub(crate) mod builder;
pub(crate) mod circuit;
mod fold;
pub(crate) mod formulas;
mod ir_graph;
mod labels;
pub(crate) mod memory;
mod operations;
pub(crate) mod passes;
