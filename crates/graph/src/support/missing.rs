//! Obstacles to running a model.

use serde::Serialize;

/// One obstacle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingItem {
    /// Kind of the obstacle.
    pub kind: MissingKind,
    /// The architecture, key, tensor, format or operation.
    pub what: String,
    /// The problem, and what would solve it.
    pub problem: String,
}

/// Kinds of obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingKind {
    /// No circuit runs the architecture.
    Architecture,
    /// A key is missing or has a value that is not supported.
    Key,
    /// A tensor is missing, or has another shape than the keys require.
    Tensor,
    /// A tensor that no operation reads.
    Unread,
    /// A format that cannot be decoded.
    Format,
    /// An operation without a kernel.
    Kernel,
}

impl MissingItem {
    pub(super) fn new(kind: MissingKind, what: impl Into<String>, problem: impl Into<String>) -> MissingItem {
        MissingItem { kind, what: what.into(), problem: problem.into() }
    }
}
