//! Findings of an audit.

use super::rules::Code;
use crate::ir::Ir;
use crate::passes::BindOptions;
use crate::target::BackendTarget;
use serde::Serialize;
use std::fmt;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    pub code: Code,
    /// The audited object: `circuit`, `ir`, `plan of the layers, decode`, `file`.
    pub stage: String,
    pub layer: Option<usize>,
    /// The node: its index and its operation.
    pub node: Option<String>,
    /// The slot, value, weight or tensor.
    pub slot: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// What to look at.
    pub hint: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.stage)?;
        if let Some(layer) = self.layer {
            write!(f, ", layer {layer}")?;
        }
        if let Some(node) = &self.node {
            write!(f, ", node {node}")?;
        }
        if let Some(slot) = &self.slot {
            write!(f, ", {slot}")?;
        }
        write!(f, ": {}. Look at: {}", self.problem, self.hint)
    }
}

/// A collector of findings.
pub(super) struct Findings<'a> {
    stage: &'a str,
    pub(super) list: Vec<Finding>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(stage: &'a str) -> Findings<'a> {
        Findings { stage, list: Vec::new() }
    }

    pub(super) fn add(&mut self, code: Code, layer: Option<usize>, slot: Option<String>, problem: String) {
        let stage = self.stage.to_owned();
        self.list.push(Finding { code, stage, layer, node: None, slot, problem, hint: code.rule().hint });
    }

    /// A finding at a node of an IR.
    pub(super) fn at(
        &mut self,
        code: Code,
        ir: &Ir,
        n: usize,
        slot: impl Into<Option<String>>,
        problem: String,
    ) {
        self.add(code, ir.nodes[n].layer, slot.into(), problem);
        if let Some(last) = self.list.last_mut() {
            last.node = Some(format!("{n} {}", ir.nodes[n].op.word()));
        }
    }
}

/// The inputs of a session's kernel selection.
#[derive(Clone, Copy)]
pub struct BindContext<'a> {
    /// The target of the plans.
    pub target: &'a BackendTarget,
    /// Precision, ISA limit and cache type.
    pub options: BindOptions,
}
